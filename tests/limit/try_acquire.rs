//! Tests of `try_acquire_with`, which acquires permits without waiting. It returns `None` if it cannot decide, and the
//! caller then uses `acquire_with`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, LocalLimiter, PermitRequest, RateLimitLayer, ResponseInfo, Snapshot},
};

use crate::{costing, ok_service, permits};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a quota with the given burst and a refill of one permit per second.
fn quota(burst: u32) -> Quota {
    Quota::new(burst + 10, 10 * SECOND).unwrap().with_burst(burst).unwrap().without_margin()
}

fn is_granted(limiter: &impl Limiter) -> bool {
    limiter.try_acquire_with(&PermitRequest::new()).is_some_and(|outcome| outcome.is_ok())
}

/// Asserts that `try_acquire_with` returns `None` and has no side effects.
#[track_caller]
fn assert_undecided(bucket: &LocalLimiter, request: &PermitRequest) {
    let counts =
        |snapshot: Snapshot| (snapshot.granted, snapshot.refused, snapshot.in_flight, snapshot.queued);
    let before = counts(bucket.snapshot());
    assert!(bucket.try_acquire_with(request).is_none());
    assert_eq!(counts(bucket.snapshot()), before);
}

#[tokio::test(start_paused = true)]
async fn try_acquire_changes_the_snapshot_like_acquire() {
    let (bucket, waited) = (LocalLimiter::token_bucket(quota(5)), LocalLimiter::token_bucket(quota(5)));
    let mut granted = Vec::new();
    for cost in [1, 3] {
        let request = costing(cost);
        granted.push(bucket.try_acquire_with(&request).unwrap().unwrap());
        granted.push(waited.acquire_with(&request).await.unwrap());
        assert_eq!(bucket.snapshot(), waited.snapshot());
    }
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.granted, snapshot.in_flight, snapshot.available), (4, 4, 1));
    assert_undecided(&bucket, &costing(2));
    assert!(is_granted(&bucket));
    assert_undecided(&bucket, &PermitRequest::new());
    drop(granted);
    assert_eq!((bucket.snapshot().granted, bucket.snapshot().in_flight), (5, 0));
    advance(SECOND).await;
    assert!(is_granted(&bucket));
}

#[tokio::test(start_paused = true)]
async fn try_acquire_overtakes_no_queued_waiter() {
    let bucket = LocalLimiter::token_bucket(quota(3));
    assert!((0..3).all(|_| is_granted(&bucket)));
    let mut waiting = task::spawn(bucket.acquire());
    assert_pending!(waiting.poll());
    assert_undecided(&bucket, &PermitRequest::new());
    // Three permits are available. The first belongs to the waiter.
    advance(4 * SECOND).await;
    assert!((0..2).all(|_| is_granted(&bucket)));
    assert_undecided(&bucket, &PermitRequest::new());
    assert_ready_ok!(waiting.poll());
}

#[tokio::test(start_paused = true)]
async fn try_acquire_obeys_server_limits() {
    let bucket = LocalLimiter::token_bucket(quota(5)).with_server_remaining();
    bucket.pause_until(Instant::now() + SECOND);
    assert_undecided(&bucket, &PermitRequest::new());
    let paused = PermitRequest::new().with_max_wait(Duration::ZERO);
    assert_eq!(bucket.acquire_with(&paused).await.unwrap_err().wait(), Some(SECOND));
    bucket.resume();
    let permit = bucket.try_acquire().unwrap();

    let two_remain = [(HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"a\";r=2;t=1"))];
    let two_remain = HeaderMap::from_iter(two_remain);
    permit.complete(&ResponseInfo::new(StatusCode::OK, &two_remain));
    assert!((0..2).all(|_| is_granted(&bucket)));
    assert_undecided(&bucket, &PermitRequest::new());
    assert_pending!(task::spawn(bucket.acquire()).poll());
}

#[tokio::test(start_paused = true)]
async fn request_that_can_never_be_granted_is_counted_as_one_refusal() {
    let bucket = LocalLimiter::token_bucket(quota(5));
    let late = PermitRequest::new().with_deadline(Instant::now());
    advance(SECOND).await;
    let large = costing(6);
    for (number, (request, reason)) in
        [(late, Reason::Deadline), (large, Reason::TooCostly { largest: 5 })].into_iter().enumerate()
    {
        assert_undecided(&bucket, &request);
        assert_eq!(bucket.acquire_with(&request).await.unwrap_err().reason(), reason);
        assert_eq!((bucket.snapshot().granted, bucket.snapshot().refused), (0, number as u64 + 1));
    }

    // A call that the limiter refuses through the layer also counts as one refusal in the snapshot.
    let layer = RateLimitLayer::new(bucket.clone()).with_cost(|_| permits(6));
    assert!(layer.layer(ok_service()).oneshot(Request::new(())).await.is_err());
    assert_eq!((bucket.snapshot().granted, bucket.snapshot().refused), (0, 3));
}
