use std::num::NonZeroU32;

use tokio::time::advance;
use tokio_test::{assert_pending, assert_ready_ok, task};

use super::*;
use crate::{
    limit::{LocalLimiter, Snapshot, Unit},
    policy::Quota,
};

#[tokio::test(start_paused = true)]
async fn expected_wait_includes_tokens_and_other_waiters() {
    let quota = Quota::per_minute(1_000).unwrap().with_unit(Unit::Tokens).unwrap();
    let limiter = LocalLimiter::sliding_window(quota.without_margin());
    let request = PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, 600));
    let seconds =
        |limiter: &LocalLimiter| limiter.expected_wait(&request).unwrap().map(|wait| wait.as_secs());
    assert_eq!(seconds(&limiter), [0, 0]);
    let mut permit = limiter.acquire_with(&request).await.unwrap();
    permit.mark_sent(clock::now());
    assert_eq!(seconds(&limiter), [60, 60]);
    let waiters = (0..3).map(|_| tokio::spawn(limiter.acquire_with(&request))).collect::<Vec<_>>();
    tokio::task::yield_now().await;
    assert_eq!(seconds(&limiter), [120, 60]);
    assert!(limiter.expected_wait(&request.with_max_queue(3)).is_none());
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Returns a token bucket that refills one permit per second, with a burst of four.
fn bucket() -> LocalLimiter {
    let quota = Quota::per_second(5).unwrap().with_burst(4).unwrap();
    LocalLimiter::token_bucket(quota.without_margin())
}

fn costing(cost: u32) -> PermitRequest {
    PermitRequest::new().with_cost(NonZeroU32::new(cost).unwrap())
}

/// Asserts that `grant_now` returns `None` and has no side effects.
#[track_caller]
fn assert_undecided(bucket: &LocalLimiter, request: &PermitRequest) {
    let counts = |snapshot: Snapshot| {
        (snapshot.granted, snapshot.refused, snapshot.awaiting_response, snapshot.queued)
    };
    let before = counts(bucket.snapshot());
    assert!(bucket.grant_now(request).is_none());
    assert_eq!(counts(bucket.snapshot()), before);
}

#[tokio::test(start_paused = true)]
async fn grant_now_grants_like_acquire_and_overtakes_no_waiter() {
    let (bucket, waited) = (bucket(), bucket());
    let take = |cost| bucket.grant_now(&costing(cost)).unwrap();
    let mut granted = Vec::new();
    for cost in [1, 2] {
        granted.push(take(cost));
        granted.push(waited.acquire_with(&costing(cost)).await.unwrap());
        assert_eq!(bucket.snapshot(), waited.snapshot());
    }
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.granted, snapshot.awaiting_response, snapshot.available), (3, 3, 1));
    assert_undecided(&bucket, &costing(2));
    // A pool passes the bounds of the request. They count no refusal either.
    assert_undecided(&bucket, &costing(2).with_max_wait(Duration::ZERO).with_max_queue(0));
    drop((granted, take(1)));
    assert_eq!((bucket.snapshot().granted, bucket.snapshot().awaiting_response), (4, 0));
    let mut waiting = task::spawn(bucket.acquire());
    assert_pending!(waiting.poll());
    assert_undecided(&bucket, &PermitRequest::new());
    // Four permits are available. The first belongs to the waiter.
    advance(Duration::from_secs(5)).await;
    drop([take(1), take(2)]);
    assert_undecided(&bucket, &PermitRequest::new());
    assert_ready_ok!(waiting.poll());
    advance(Duration::from_secs(4)).await;
    bucket.pause_until(Instant::now() + Duration::from_secs(1));
    assert_undecided(&bucket, &PermitRequest::new());
}
