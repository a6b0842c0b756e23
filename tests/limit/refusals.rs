//! Tests of refusals: the maximum wait, deadline and queue length of a request, and the wait that a refusal carries.

use std::time::Duration;

use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, LocalLimiter, PermitRequest},
};

use crate::{bucket, millis, one_per_second, permits, refilling};

#[tokio::test(start_paused = true)]
async fn refusal_spends_no_permits_and_carries_the_wait_until_a_grant() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(waiting.poll());

    let now = Instant::now();
    let bounded = [
        (PermitRequest::new().with_max_wait(Duration::from_millis(1_999)), Reason::MaxWait),
        (PermitRequest::new().with_deadline(now + Duration::from_millis(1_999)), Reason::Deadline),
        (PermitRequest::new().with_max_queue(1), Reason::QueueFull),
    ];
    for (bounded, reason) in bounded {
        let refusal = bucket.acquire_with(&bounded).await.unwrap_err();
        assert_eq!((refusal.reason(), refusal.wait()), (reason, Some(Duration::from_secs(2))));
        assert_eq!(now.elapsed(), Duration::ZERO, "the refusal is immediate");
    }
    // A request whose maximum wait equals the forecast wait is queued.
    let fits = PermitRequest::new().with_max_wait(Duration::from_secs(2));
    let mut fits = task::spawn(bucket.acquire_with(&fits));
    assert_pending!(fits.poll());
    drop(waiting);
    fits.await.unwrap();
    assert_eq!(
        now.elapsed(),
        Duration::from_secs(1),
        "the waiter is granted early, because the waiter ahead was dropped"
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_refused_as_soon_as_it_cannot_meet_its_deadline() {
    let bucket = bucket(11, 110, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let start = Instant::now();
    // A permit is refilled every eleven seconds.
    let until = |seconds| PermitRequest::new().with_deadline(start + Duration::from_secs(seconds));
    let head = tokio::spawn(bucket.acquire_with(&until(30)));
    let second = tokio::spawn(bucket.acquire_with(&until(200)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.pause_until(start + Duration::from_secs(100));
    assert_eq!(head.await.unwrap().unwrap_err().reason(), Reason::Deadline);
    assert_eq!(
        start.elapsed(),
        Duration::from_secs(1),
        "the waiter is refused when the pause starts, not at its deadline"
    );
    // A request that arrives during the pause would be granted 11 s after the pause, because another waiter is ahead.
    let refusal = bucket.acquire_with(&until(105)).await.unwrap_err();
    assert_eq!(refusal.wait(), Some(Duration::from_secs(110)));
    second.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(100));
}

#[tokio::test(start_paused = true)]
async fn max_wait_starts_when_a_request_is_queued() {
    let bucket = bucket(2, 6, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let start = Instant::now();
    let wait =
        tokio::spawn(bucket.acquire_with(&PermitRequest::new().with_max_wait(Duration::from_secs(10))));
    tokio::time::sleep(Duration::from_secs(5)).await;
    bucket.pause_until(start + Duration::from_secs(14));
    assert_eq!(wait.await.unwrap().unwrap_err().reason(), Reason::MaxWait);
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn request_whose_deadline_has_passed_is_refused_and_spends_no_permits() {
    let (bucket, window) =
        (refilling(10, 10), LocalLimiter::sliding_window(Quota::per_second(10).unwrap().without_margin()));
    tokio::time::advance(millis(5_000)).await;
    let late = PermitRequest::new().with_deadline(Instant::now() - millis(1));
    assert_eq!(bucket.acquire_with(&late).await.unwrap_err().reason(), Reason::Deadline);
    assert_eq!(window.acquire_with(&late).await.unwrap_err().reason(), Reason::Deadline);
    assert_eq!((bucket.snapshot().granted, window.snapshot().granted), (0, 0));
    let now = PermitRequest::new().with_deadline(Instant::now());
    bucket.acquire_with(&now).await.unwrap();
}

/// A sliding window leaves permits unused if the next cost does not fit. The forecast for a queued request ignores
/// these unused permits until the request is first in the queue.
#[tokio::test(start_paused = true)]
async fn refusal_of_the_first_waiter_carries_the_remaining_wait_for_a_grant() {
    let window = LocalLimiter::sliding_window(Quota::new(3, millis(10_000)).unwrap().without_margin());
    let two = permits(2);
    window.try_acquire().unwrap();
    tokio::time::advance(millis(5_000)).await;
    window.try_acquire_many(two).unwrap();
    let first = tokio::spawn(window.acquire_with(&PermitRequest::new().with_cost(two)));
    tokio::task::yield_now().await;
    let bounded = PermitRequest::new().with_cost(two).with_max_wait(millis(16_000));
    let refusal = window.acquire_with(&bounded).await.unwrap_err();
    first.await.unwrap().unwrap();
    assert_eq!(refusal.reason(), Reason::MaxWait);
    let wait = refusal.wait().unwrap();
    assert!(wait > millis(9_900) && wait <= millis(10_001), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn limiter_snapshot_counts_refusals() {
    let bucket = LocalLimiter::token_bucket(one_per_second());
    assert_eq!(bucket.snapshot().refused, 0);
    bucket.try_acquire().unwrap();
    for refused in 1..=3 {
        assert_eq!(bucket.try_acquire().unwrap_err().reason(), Reason::MaxWait);
        assert_eq!(bucket.snapshot().refused, refused);
    }
}
