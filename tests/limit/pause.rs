//! Tests of `pause_until` and `resume`, which apply to all callers of a limiter. The module `server_limits` tests the
//! pauses that `Retry-After` requests.

use std::time::Duration;

use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, PermitRequest, TokenBucket},
};

use crate::{Algorithm, bucket};

for_each_algorithm! {
    start_and_end_of_a_pause_wake_only_the_first_waiter,
}

#[tokio::test(start_paused = true)]
async fn pause_that_ends_in_the_past_has_no_effect() {
    let limiter = TokenBucket::unlimited();
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
    let bucket = TokenBucket::unlimited();
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
    let bucket = TokenBucket::unlimited();
    bucket.pause_until(Instant::now() + Duration::from_secs(99_999_999));
    let start = Instant::now();
    let waiting = tokio::spawn(bucket.acquire_with(&PermitRequest::new()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.resume();
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

async fn start_and_end_of_a_pause_wake_only_the_first_waiter<L: Algorithm>() {
    let limiter = L::of(Quota::per_second(1).unwrap().without_margin());
    limiter.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut waiting: Vec<_> =
        (0..50).map(|_| task::spawn(limiter.acquire_with(&PermitRequest::new()))).collect();
    for waiter in &mut waiting {
        assert_pending!(waiter.poll());
    }
    limiter.pause(Duration::from_secs(10));
    assert!(
        !waiting.iter().skip(1).any(task::Spawn::is_woken),
        "the start of the pause wakes only the first waiter"
    );
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(3)).await;
        // The other waiters have timers of their own, to check whether the first waiter is polled.
        for waiter in waiting.iter_mut().filter(|waiter| waiter.is_woken()) {
            assert_pending!(waiter.poll());
        }
    }
    tokio::time::advance(Duration::from_millis(1_002)).await;
    for waiter in waiting.iter_mut().skip(1).filter(|waiter| waiter.is_woken()) {
        assert_pending!(waiter.poll());
    }
    assert!(waiting[0].is_woken());
    assert_ready_ok!(waiting[0].poll());
    let woken: Vec<_> = (1..waiting.len()).filter(|number| waiting[*number].is_woken()).collect();
    assert_eq!(woken, [1], "the first waiter wakes only the second waiter, which then arms a timer");
}
