//! Tests of the grants of token buckets and sliding windows: bursts, refill, multiple quotas and costs.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, LocalLimiter, PermitCost, PermitRequest, RateLimitLayer},
};

use crate::{bucket, costing, ok_service, permits};

#[tokio::test(start_paused = true)]
async fn token_bucket_grants_its_burst_immediately_then_permits_at_refill_rate() {
    let bucket = bucket(100, 60, 10);
    let start = Instant::now();
    let mut grants = Vec::new();
    for _ in 0..100 {
        bucket.acquire_with(&PermitRequest::new()).await.unwrap();
        grants.push(start.elapsed());
    }
    assert!(grants[..10].iter().all(Duration::is_zero));
    // The bucket refills 90 permits in 60 s. Tokio's timer rounds up to the next millisecond.
    for (number, grant) in grants[10..].iter().enumerate() {
        let due = Duration::from_secs_f64((number + 1) as f64 * 60.0 / 90.0);
        assert!(
            *grant >= due && *grant <= due + Duration::from_millis(2),
            "grant {number} came after {grant:?}, expected after {due:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn sliding_window_grants_its_complete_quota_at_once_in_each_window() {
    let window = LocalLimiter::sliding_window(Quota::per_minute(100).unwrap().without_margin());
    let start = Instant::now();
    let mut grants = Vec::new();
    for _ in 0..300 {
        window.acquire_with(&PermitRequest::new()).await.unwrap();
        grants.push(start.elapsed());
    }
    assert!(grants[..100].iter().all(Duration::is_zero));
    // A window includes both of its ends, so the next window starts after more than 60 s. Tokio's timer rounds up to
    // the next millisecond.
    let minute = Duration::from_millis(60_001);
    assert!(grants[100..200].iter().all(|at| *at == minute), "{:?}", &grants[100..102]);
    assert!(grants[200..].iter().all(|at| *at == 2 * minute));
}

#[tokio::test(start_paused = true)]
async fn token_bucket_takes_permits_from_all_quotas_or_from_none() {
    let ten_a_second = Quota::per_second(10).unwrap().with_burst(5).unwrap().without_margin();
    let hundred_a_minute = Quota::per_minute(100).unwrap().with_burst(7).unwrap().without_margin();
    let bucket = LocalLimiter::token_bucket([ten_a_second, hundred_a_minute]);
    // After five grants the first quota has no permits left, and the second quota has two permits left.
    for _ in 0..5 {
        bucket.try_acquire().unwrap();
    }
    assert!(bucket.try_acquire().is_err());
    assert_eq!(bucket.snapshot().available, 0);
    // Refusals by the first quota take no permits from the second quota.
    for _ in 0..100 {
        assert!(bucket.try_acquire().is_err());
    }
    tokio::time::advance(Duration::from_millis(600)).await;
    assert_eq!(bucket.snapshot().available, 2);
    for _ in 0..2 {
        bucket.try_acquire().unwrap();
    }
    // The first quota has one permit left. The second quota refills one permit every 645 ms (60 s / 93), of which 600
    // ms have passed.
    let wait = bucket.try_acquire().unwrap_err().wait().unwrap();
    assert!((Duration::from_millis(45)..Duration::from_millis(46)).contains(&wait), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn limiter_grants_all_permits_of_a_request_at_once_or_refuses_an_excessive_cost() {
    let bucket = bucket(20, 10, 10);
    bucket.acquire_with(&costing(7)).await.unwrap();
    let start = Instant::now();
    bucket.acquire_with(&costing(5)).await.unwrap();
    assert_eq!(
        start.elapsed(),
        Duration::from_secs(2),
        "three permits were available, and the refill of two more permits takes 2 s"
    );
    let refusal = bucket.acquire_with(&costing(11)).await.unwrap_err();
    assert_eq!((refusal.reason(), refusal.wait()), (Reason::TooCostly { largest: 10 }, None));
    let window = LocalLimiter::sliding_window(Quota::per_minute(20).unwrap().without_margin());
    assert_eq!(
        window.acquire_with(&costing(21)).await.unwrap_err().reason(),
        Reason::TooCostly { largest: 20 }
    );
    window.acquire_with(&costing(20)).await.unwrap();
    assert!(window.try_acquire().is_err());

    let layer = RateLimitLayer::new(bucket);
    let mut request = Request::new(());
    request.extensions_mut().insert(PermitCost(permits(11)));
    let error = layer.layer(ok_service()).oneshot(request).await.unwrap_err();
    assert!(error.kind() == tower_outbound::ErrorKind::TooCostly && !error.is_rate_limited());
    assert_eq!(
        format!("{error:#}"),
        "request costs more permits than the rate limiter can grant: the request costs more permits than can ever be granted at once \
         (at most 10)"
    );
    let by_path = layer.with_cost(|head| permits(head.uri.path().len() as u32));
    let request = Request::get("/0123456789").body(()).unwrap();
    assert!(
        by_path.layer(ok_service()).oneshot(request).await.unwrap_err().kind()
            == tower_outbound::ErrorKind::TooCostly
    );
}

#[tokio::test(start_paused = true)]
async fn initial_burst_sets_how_many_permits_are_available_at_the_start() {
    for permits in [1, 4, 10] {
        let bucket = bucket(20, 10, 10).with_initial_burst(permits);
        let window = LocalLimiter::sliding_window(Quota::per_second(10).unwrap()).with_initial_burst(permits);
        assert_eq!([bucket.snapshot().available, window.snapshot().available], [permits; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn initial_burst_of_zero_grants_no_permits_at_the_start() {
    let bucket = bucket(20, 10, 10).with_initial_burst(0);
    assert_eq!(bucket.snapshot().available, 0);
    assert_eq!(bucket.try_acquire().unwrap_err().wait(), Some(Duration::from_secs(1)));
    let window =
        LocalLimiter::sliding_window(Quota::per_second(5).unwrap().without_margin()).with_initial_burst(0);
    let start = Instant::now();
    window.acquire_with(&PermitRequest::new()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(1_001));
}

#[tokio::test(start_paused = true)]
async fn snapshot_shows_the_current_state_of_the_limiter() {
    let bucket = bucket(11, 10, 1);
    bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut waiting = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(waiting.poll());
    let until = Instant::now() + Duration::from_secs(5);
    bucket.pause_until(until);
    bucket.try_acquire().unwrap_err();
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.available, snapshot.queued, snapshot.granted, snapshot.refused), (0, 1, 1, 1));
    assert_eq!(snapshot.paused_until, Some(until));
    let unlimited = LocalLimiter::unlimited().snapshot();
    assert_eq!((unlimited.available, unlimited.paused_until), (u32::MAX, None));
}

#[cfg(feature = "quanta")]
#[tokio::test(start_paused = true)]
async fn quanta_clock_does_not_follow_the_paused_clock_of_tokio() {
    let hours = Quota::new(2, Duration::from_secs(36_000)).unwrap().with_burst(1).unwrap().without_margin();
    let bucket = LocalLimiter::token_bucket(hours).with_quanta_clock();
    bucket.try_acquire().unwrap();
    tokio::time::advance(Duration::from_secs(36_000)).await;
    assert!(bucket.try_acquire().is_err());
}
