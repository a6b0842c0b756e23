//! Tests which settings of the retry layer are rejected, and which settings the `Debug` output shows.

use tower_outbound::retry::{RetryLayer, RetryOverride};

use super::support::millis;

#[test]
fn retry_layer_rejects_zero_max_attempts() {
    let error = RetryLayer::new().with_max_attempts(0).unwrap_err();
    assert_eq!((error.field(), error.value()), ("max attempts", "0"));
}

#[test]
fn request_override_rejects_zero_max_attempts() {
    let error = RetryOverride::new().with_max_attempts(0).unwrap_err();
    assert_eq!((error.field(), error.value()), ("max attempts", "0"));
}

#[test]
fn debug_output_of_a_retry_layer_shows_its_settings() {
    let layer =
        RetryLayer::new().with_max_attempts(7).unwrap().with_custom_backoff(|| std::iter::repeat(millis(1)));
    let debug = format!("{layer:?}");
    for setting in [
        "max_attempts: 7",
        "transient: Custom",
        "throttled: ExponentialBackoff { base: 1s",
        "Budget { left: 500",
        "retry_rejected: AnyMethod",
        "replay_limit: ",
    ] {
        assert!(debug.contains(setting), "`{setting}` is missing in {debug}");
    }
    let debug = format!("{:?}", RetryLayer::new().without_budget());
    assert!(
        debug.contains("budget: None") && debug.contains("transient: ExponentialBackoff { base: "),
        "{debug}"
    );
}
