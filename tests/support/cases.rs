//! The number of cases that a property test runs.

use proptest::test_runner::Config;

/// Runs `default` cases, or the number in the environment variable `PROPTEST_CASES`.
pub(crate) fn cases(default: u32) -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config::with_cases(cases.unwrap_or(default))
}
