//! Tests of `pause_until` and `resume`, which apply to all callers of a limiter. The module `server_limits` tests the
//! pauses that `Retry-After` requests.

use std::time::Duration;

use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Acquire, Limiter, LocalLimiter, PermitRequest},
};

use crate::{Pause, bucket};

#[tokio::test(start_paused = true)]
async fn pause_that_ends_in_the_past_has_no_effect() {
    let limiter = LocalLimiter::unlimited();
    tokio::time::advance(Duration::from_secs(1)).await;
    limiter.pause_until(Instant::now() - Duration::from_millis(1));
    assert!((0..100).all(|_| limiter.try_acquire().is_ok()));
    // After a pause, waiters are granted gradually even if the quotas were removed during the pause.
    let limiter = bucket(100, 60, 10);
    let start = Instant::now();
    limiter.pause_until(start + Duration::from_secs(10));
    let waiting: Vec<_> =
        (0..50).map(|_| tokio::spawn(limiter.acquire_with(&PermitRequest::new()))).collect();
    tokio::task::yield_now().await;
    limiter.set_quotas([]);
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    assert!(start.elapsed() > Duration::from_millis(10_500), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn pause_of_a_limiter_applies_to_all_callers_and_is_never_shortened() {
    let bucket = LocalLimiter::unlimited();
    let start = Instant::now();
    bucket.pause_until(start + Duration::from_secs(3));
    let waiting: Vec<_> = (0..10).map(|_| tokio::spawn(bucket.acquire_with(&PermitRequest::new()))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.clone().pause_until(start + Duration::from_secs(5));
    bucket.pause_until(start + Duration::from_secs(2));
    let refusal = bucket.acquire_with(&PermitRequest::new().with_max_wait(Duration::ZERO)).await.unwrap_err();
    // The pause ends 4 s from now. Slow start then doubles the rate every 100 ms, so the eleventh request would be
    // granted 337.5 ms after the pause.
    assert_eq!(refusal.wait(), Some(Duration::from_micros(4_337_500)));
    let mut left = Vec::new();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
        left.push(start.elapsed().as_millis());
    }
    assert_eq!(left, [5_000, 5_100, 5_150, 5_200, 5_225, 5_250, 5_275, 5_300, 5_313, 5_325]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!((0..1_000).all(|_| bucket.try_acquire().is_ok()), "slow start has ended 2 s after the pause");
}

#[tokio::test(start_paused = true)]
async fn pause_until_the_far_future_causes_a_refusal_instead_of_a_panic() {
    let bucket = bucket(100, 60, 10);
    bucket.pause_until(Instant::now() + Duration::from_secs(u64::from(u32::MAX)));
    let deadline = PermitRequest::new().with_deadline(Instant::now() + Duration::from_secs(60));
    assert_eq!(bucket.acquire_with(&deadline).await.unwrap_err().reason(), Reason::Deadline);
}

#[tokio::test(start_paused = true)]
async fn resume_ends_the_pause_of_a_limiter_immediately() {
    let bucket = LocalLimiter::unlimited();
    bucket.pause_until(Instant::now() + Duration::from_secs(99_999_999));
    let start = Instant::now();
    let waiting = tokio::spawn(bucket.acquire_with(&PermitRequest::new()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.resume();
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn end_of_a_pause_wakes_only_the_waiters_that_get_a_permit() {
    let limiter = LocalLimiter::paced_window(Quota::per_second(1).unwrap().without_margin());
    limiter.acquire().await.unwrap();
    let mut waiting: Vec<_> = (0..50).map(|_| task::spawn(limiter.acquire())).collect();
    for waiter in &mut waiting {
        assert_pending!(waiter.poll());
    }
    limiter.pause(Duration::from_secs(10));
    let woken = |waiting: &[task::Spawn<Acquire>]| waiting.iter().filter(|waiter| waiter.is_woken()).count();
    tokio::time::sleep(Duration::from_millis(9_990)).await;
    assert_eq!(woken(&waiting), 0);
    tokio::time::sleep(Duration::from_millis(15)).await;
    assert_eq!((woken(&waiting), waiting[0].is_woken()), (1, true));
    assert_ready_ok!(waiting[0].poll());
}
