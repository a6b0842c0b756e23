//! How many cases a property is tried on.

use proptest::test_runner::Config;

/// As many as `PROPTEST_CASES` says, or so many.
pub(crate) fn cases(otherwise: u32) -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config::with_cases(cases.unwrap_or(otherwise))
}
