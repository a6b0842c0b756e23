//! Tests the errors for invalid settings of a Redis limiter, and redaction in its `Debug` output.

use tower_outbound::limit::Unit;

use super::*;

#[test]
fn error_for_an_invalid_redis_setting_states_the_valid_values() {
    let quotas = || [quota(10, millis(1_000))];
    let make = |url: &str| RedisLimiter::token_bucket(url, "key", quotas());
    let valid = || make("redis://localhost").unwrap();
    let with_tokens = || {
        let tokens = quota(100, millis(1_000)).with_unit(Unit::Tokens).unwrap();
        RedisLimiter::token_bucket("redis://localhost", "key", tokens).unwrap()
    };
    let divided = |processes| {
        let limiter = RedisLimiter::token_bucket("redis://localhost", "key", [quota(100, millis(1_000))]);
        limiter.unwrap().with_fallback_share(processes).unwrap()
    };
    let cases = [
        (
            make("http://user:hunter2@localhost").err(),
            "invalid redis url `***`: expected a url such as `redis://",
        ),
        (
            RedisLimiter::token_bucket("redis://localhost", "key", []).err(),
            "invalid quotas `none`: expected at least one",
        ),
        (
            RedisLimiter::token_bucket("redis://localhost", "key", Quota::bucket(40, 2, millis(1_000)))
                .and_then(|limiter| limiter.with_fallback_share(41))
                .err(),
            "invalid processes `41`: expected 1 to 40, because a quota has a capacity of 40",
        ),
        (valid().with_namespace("a{b}").err(), "invalid namespace `a{b}`: expected a name without braces"),
        (valid().with_lease(0, millis(10)).err(), "invalid lease permits `0`: expected 1 to 1000"),
        (
            valid().with_lease(10, millis(1_001)).err(),
            "invalid hold `1.001s`: expected more than zero and at most 1s (the shortest window)",
        ),
        (valid().with_lease(1, Duration::ZERO).err(), "invalid hold `0ns`: expected more than zero"),
        (
            valid().with_timeout(Duration::ZERO).err(),
            "invalid timeout `0ns`: expected more than zero and at most 1h",
        ),
        (valid().with_timeout(Duration::MAX).err(), "invalid timeout `18446744073709551615.999999999s`"),
        (
            valid().with_fallback_share(2).err(),
            "invalid processes `2`: expected 1 to 1, because a quota has a burst of 1",
        ),
        (
            with_tokens().with_lease(2, millis(10)).err(),
            "invalid lease permits `2`: expected 1, because a quota counts a unit other than requests",
        ),
        (
            with_tokens().with_fallback_share(101).err(),
            "invalid processes `101`: expected 1 to 100, because a quota has a limit of 100",
        ),
        (valid().with_max_in_flight(0).err(), "invalid max in flight `0`: expected at least 1"),
        (
            divided(2).with_max_in_flight(1).err(),
            "invalid max in flight `1`: expected at least 2, the number of processes with a fallback share",
        ),
        (
            divided(1).with_max_in_flight(2).and_then(|limiter| limiter.with_fallback_share(3)).err(),
            "invalid processes `3`: expected 1 to 2, because of the limit of requests in flight",
        ),
        (
            valid().with_in_flight_expiry(millis(999)).err(),
            "invalid in flight expiry `999ms`: expected 1s to 1h",
        ),
    ];
    for (error, text) in cases {
        let error = error.unwrap().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

#[tokio::test]
async fn debug_output_of_redis_limiter_shows_no_quota_name_or_password() {
    let limiter =
        RedisLimiter::token_bucket("redis://me:hunter2@localhost", "sk_live", [quota(10, millis(1_000))]);
    let limiter = limiter.unwrap();
    let text = format!("{limiter:?}");
    assert!(!text.contains("hunter2") && !text.contains("sk_live"), "{text}");
    assert!(text.contains("localhost:6379"), "{text}");
}
