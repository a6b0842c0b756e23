//! The layer over a service: shared limiters, and permits while the service is not ready.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tokio::time::Instant;
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{RateLimitLayer, SlidingWindow, TokenBucket},
    test_util::Arrivals,
};

use crate::bucket;

#[tokio::test(start_paused = true)]
async fn layers_and_clones_of_one_limiter_share_the_bucket() {
    let layer = RateLimitLayer::new(bucket(11, 10, 1)).with_max_wait(Duration::ZERO);
    let service = || tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let (one, two) = (layer.layer(service()), layer.clone().layer(service()));
    one.clone().oneshot(Request::new(())).await.unwrap();
    for service in [one, two] {
        let error = service.oneshot(Request::new(())).await.unwrap_err();
        assert!(error.is_rate_limited());
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn does_not_hold_the_inner_service_ready_during_the_wait() {
    // The inner service has one slot, and two requests wait in the limiter above it.
    let layer = RateLimitLayer::new(bucket(11, 10, 1));
    let slots = tower::limit::ConcurrencyLimitLayer::new(1);
    let inner =
        slots.layer(tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
    let limited = layer.layer(inner.clone());
    limited.clone().oneshot(Request::new(())).await.unwrap();
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut other = inner;
    assert!(tokio_test::task::spawn(other.ready()).poll().is_ready(), "the slot is free");
    drop(other);
    for wait in waiting {
        wait.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_pauses_the_limiter_only_on_429_and_503() {
    for (status, pauses) in [(429, true), (503, true), (202, false), (301, false), (500, false)] {
        let layer = RateLimitLayer::new(TokenBucket::unlimited());
        let mut service = layer.layer(tower::service_fn(move |_: Request<()>| async move {
            Response::builder().status(status).header("retry-after", "2").body(())
        }));
        let start = Instant::now();
        service.ready().await.unwrap().call(Request::new(())).await.unwrap();
        service.ready().await.unwrap().call(Request::new(())).await.unwrap();
        assert_eq!(start.elapsed() >= Duration::from_secs(2), pauses, "{status}");
    }
}

/// Records when each request arrives. The first `slow` requests take `takes`.
fn slow_at_first(
    slow: usize,
    takes: Duration,
    status: u16,
) -> (impl Service<Request<()>, Response = Response<()>, Error = http::Error, Future: Send> + Clone, Arrivals)
{
    let arrivals = Arrivals::new();
    let noted = arrivals.clone();
    let service = tower::service_fn(move |_: Request<()>| {
        noted.note();
        let number = noted.times().len();
        let takes = if number <= slow { takes } else { Duration::ZERO };
        async move {
            tokio::time::sleep(takes).await;
            let status = if number == 1 { status } else { 200 };
            Response::builder().status(status).header("retry-after", "30").body(())
        }
    });
    (service, arrivals)
}

#[tokio::test(start_paused = true)]
async fn replaces_permits_that_expired_while_the_inner_service_was_not_ready() {
    for (margin, sliding) in [(0, false), (0, true), (500, false)] {
        let quota = Quota::per_second(10).unwrap().with_margin(Duration::from_millis(margin)).unwrap();
        let (service, arrivals) = slow_at_first(8, Duration::from_secs(10), 200);
        let slots = tower::limit::ConcurrencyLimitLayer::new(8).layer(service);
        let calls: Vec<_> = if sliding {
            let limited = RateLimitLayer::new(SlidingWindow::new(quota)).layer(slots);
            (0..100).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect()
        } else {
            let limited = RateLimitLayer::new(TokenBucket::new(quota)).layer(slots);
            (0..100).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect()
        };
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(arrivals.times().len(), 100);
        let most = arrivals.most_in(Duration::from_secs(1));
        assert!(most <= 10, "margin {margin}, sliding {sliding}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_applies_to_permits_that_wait_for_the_inner_service() {
    let (service, arrivals) = slow_at_first(1, Duration::from_secs(1), 429);
    let slot = tower::limit::ConcurrencyLimitLayer::new(1).layer(service);
    let limiter = TokenBucket::unlimited();
    let limited = RateLimitLayer::new(limiter.clone()).layer(slot);
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let arrivals = arrivals.times();
    assert!(arrivals[1] - arrivals[0] >= Duration::from_secs(31), "{:?}", arrivals[1] - arrivals[0]);
    assert_eq!(limiter.snapshot().in_flight, 0, "a replaced permit is not counted twice");
}
