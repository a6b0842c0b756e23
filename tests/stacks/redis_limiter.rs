//! Compiles the README's preset with a quota that is shared through Redis. `tests/redis` tests the limiter with real
//! servers.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use tower_outbound::{
    ApiKey, BoxError, Client,
    adapter::{RedisLimiter, Store},
    preset,
};

fn shared(key: &str) -> Result<Client, BoxError> {
    let rates = preset::currency_rates("https://rates.example.com")?;
    let limiter = RedisLimiter::token_bucket("redis://localhost:6379", key, rates.quotas().to_vec())?
        // While Redis does not reply, each of four processes uses a quarter of the quota.
        // By default, the limiter refuses every request while Redis does not reply.
        .with_fallback_share(4)?
        // One query fetches up to 20 permits, which the process may use for up to a second.
        // This hold lowers the rate of 100 requests per minute by 1.6 %.
        .with_lease(20, Duration::from_secs(1))?;
    assert_eq!(limiter.store(), Store::NotQueried);
    let rates = rates.with_api_key(ApiKey::new(key)?);
    let client = rates.with_limiter(limiter).client()?;
    Ok(client)
}

#[test]
fn readme_preset_accepts_a_redis_limiter() {
    let client = shared("k3y").unwrap();
    assert!(!format!("{client:?}").contains("k3y"));
}
