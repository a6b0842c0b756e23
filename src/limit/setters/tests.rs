use std::{num::NonZeroU32, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};
use tokio::time::advance;

use super::*;
use crate::{
    limit::{Amounts, Limiter, PermitRequest, PermitSource, ResponseInfo, Snapshot},
    policy::{Quota, Unit},
};

const SECOND: Duration = Duration::from_secs(1);

fn limiter() -> LocalLimiter {
    LocalLimiter::paced_window(Quota::per_second(1_000).unwrap())
}

/// Sends a request through a permit that borrows the limiter, or one that shares it. The response has no headers.
/// Returns the rest of the pause.
async fn respond(limiter: &LocalLimiter, status: u16, is_shared: bool) -> Duration {
    let headers = HeaderMap::new();
    let info = ResponseInfo::new(StatusCode::from_u16(status).unwrap(), &headers);
    match is_shared {
        true => limiter.acquire_with(&PermitRequest::new()).await.unwrap().complete(&info),
        false => limiter.try_acquire().unwrap().complete(&info),
    }
    let now = crate::clock::now();
    limiter.snapshot().paused_until.map_or(Duration::ZERO, |until| until - now)
}

#[tokio::test(start_paused = true)]
async fn bare_429_pauses_the_limiter_until_an_accepted_response_without_headers_ends_the_doubling() {
    for is_shared in [false, true] {
        let limiter = limiter();
        assert_eq!(respond(&limiter, 200, is_shared).await, Duration::ZERO);
        for (status, pause) in [(429, 1), (529, 2), (200, 0), (429, 1), (503, 0), (429, 2)] {
            assert_eq!(respond(&limiter, status, is_shared).await, pause * SECOND, "{status}");
            advance(pause * SECOND).await;
        }
    }
}

#[test]
fn setters_reject_a_longest_pause_of_zero_and_a_long_pause_without_a_delay() {
    let error = limiter().with_longest_pause(Duration::ZERO).unwrap_err();
    assert_eq!(error.to_string(), "invalid longest pause `0ns`: expected more than zero");
    let error = limiter().with_throttle_pause(301 * SECOND).unwrap_err();
    assert_eq!(error.to_string(), "invalid throttle pause `301s`: expected at most 300s");
    assert!(limiter().with_throttle_pause(Duration::ZERO).is_ok());
}

#[tokio::test(start_paused = true)]
async fn setter_keeps_the_source_of_permits() {
    struct Empty(Arc<()>);
    impl PermitSource for Empty {
        fn take(&mut self, _cost: NonZeroU32, _amounts: &Amounts, _now: u64) -> bool {
            assert_eq!(Arc::strong_count(&self.0), 2);
            false
        }
        fn forecast(&self, start: u64, _total: u64, _costliest: u32) -> u64 {
            start + 7
        }
        fn available(&self, _now: u64) -> u32 {
            0
        }
    }
    let alive = Arc::new(());
    let limiter = LocalLimiter::from_source(Empty(Arc::clone(&alive)), Quota::per_second(10).unwrap());
    let limiter = limiter.with_longest_pause(SECOND).unwrap().with_throttle_pause(2 * SECOND).unwrap();
    #[cfg(feature = "quanta")]
    let limiter = limiter.with_quanta_clock();
    assert_eq!(limiter.try_acquire().unwrap_err().wait(), Some(Duration::from_nanos(7)));
    let Snapshot { available, .. } = limiter.snapshot();
    assert_eq!(available, 0);
}

/// Such a limiter would otherwise hold back requests for which the store has room.
#[tokio::test(start_paused = true)]
async fn changed_quota_of_tokens_is_counted_by_the_store_alone() {
    struct Always;
    impl PermitSource for Always {
        fn take(&mut self, _cost: NonZeroU32, _amounts: &Amounts, _now: u64) -> bool {
            true
        }
        fn forecast(&self, start: u64, _total: u64, _costliest: u32) -> u64 {
            start
        }
        fn available(&self, _now: u64) -> u32 {
            u32::MAX
        }
    }
    let tokens = |limit| Quota::per_minute(limit).unwrap().with_unit(Unit::Tokens).unwrap();
    let limiter = LocalLimiter::from_source(Always, tokens(30_000));
    limiter.set_quotas(tokens(40_000));
    let request = PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, 10_000));
    let start = crate::clock::now();
    for _ in 0..3 {
        limiter.acquire_with(&request).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// A source whose permits arrive without a notification, such as from another process.
#[tokio::test(start_paused = true)]
async fn waiter_gets_unreported_permits_of_a_source_within_a_second() {
    struct Later(crate::clock::Instant);
    impl PermitSource for Later {
        fn take(&mut self, _cost: NonZeroU32, _amounts: &Amounts, _now: u64) -> bool {
            self.available(0) > 0
        }
        fn forecast(&self, start: u64, _total: u64, _costliest: u32) -> u64 {
            start
        }
        fn available(&self, _now: u64) -> u32 {
            u32::from(crate::clock::now() >= self.0)
        }
    }
    let start = crate::clock::now();
    let limiter = LocalLimiter::from_source(Later(start + SECOND / 2), Quota::per_second(10).unwrap());
    limiter.acquire().await.unwrap();
    assert_eq!(start.elapsed(), SECOND);
}
