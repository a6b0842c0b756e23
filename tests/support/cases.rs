//! The number of cases that a property test runs.

use proptest::test_runner::Config;

/// Returns a configuration with the number of cases in the environment variable `PROPTEST_CASES`, or with `default`
/// cases if the variable is not set.
pub(crate) fn cases(default: u32) -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config::with_cases(cases.unwrap_or(default))
}
