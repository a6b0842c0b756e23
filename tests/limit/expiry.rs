//! Tests of permit expiry: when a permit expires, and how `RateLimitLayer` replaces an expired permit.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    call::RequestHead,
    limit::{AnyLimiter, Limiter, LocalLimiter, PermitRequest, RateLimitLayer, ResponseInfo, SelectLimiter},
    test_util::Arrivals,
};

use crate::{ReadyAfter, costing, millis, one_per_second};

/// Under a quota without a safety margin, a permit expires after 1/32 of the window or 50 ms, whichever is shorter.
#[tokio::test(start_paused = true)]
async fn permit_expires_after_a_quarter_of_the_safety_margin() {
    let quota = |window, margin| Quota::new(10, millis(window)).unwrap().with_margin(millis(margin)).unwrap();
    for (quotas, longest) in [
        (vec![quota(60_000, 1_000)], 250),
        (vec![quota(60_000, 100)], 25),
        (vec![quota(60_000, 4)], 1),
        (vec![quota(160, 40)], 10),
        (vec![Quota::new(10, millis(64)).unwrap()], 1),
        (vec![quota(60_000, 0)], 50),
        (vec![quota(160, 0)], 5),
        (vec![quota(60_000, 1_000), quota(160, 0)], 5),
    ] {
        for limiter in [
            AnyLimiter::new(LocalLimiter::token_bucket(quotas.clone())),
            AnyLimiter::new(LocalLimiter::sliding_window(quotas.clone())),
        ] {
            let request = Request::new(());
            let permit = limiter.acquire_for(RequestHead::of(&request), &PermitRequest::new()).await.unwrap();
            advance(millis(longest) - Duration::from_nanos(1)).await;
            for expired in [false, false, true] {
                assert_eq!(permit.is_expired(), expired, "{quotas:?}");
                advance(Duration::from_nanos(1)).await;
            }
        }
    }
    let unlimited = LocalLimiter::unlimited();
    let permit = unlimited.try_acquire().unwrap();
    advance(Duration::from_secs(1_000_000)).await;
    assert!(!permit.is_expired(), "permits of an unlimited limiter do not expire");
}

#[tokio::test(start_paused = true)]
async fn max_wait_and_max_queue_do_not_limit_replacement_of_expired_permits() {
    for (delay, granted) in [(50, 1), (51, 2)] {
        let limiter = LocalLimiter::token_bucket(one_per_second());
        let layer = RateLimitLayer::new(limiter.clone()).with_max_wait(Duration::ZERO).with_max_queue(0);
        // The maximum wait and the maximum queue length apply only to the first permit of a call.
        layer.layer(ReadyAfter::new(millis(delay))).oneshot(Request::new(())).await.unwrap();
        assert_eq!(limiter.snapshot().granted, granted, "inner service ready after {delay} ms");
    }
}

/// Returns a service that records when each request arrives. The first response has the status `status`. The first
/// `slow` responses take `delay`.
fn slow_at_first(
    slow: usize,
    delay: Duration,
    status: u16,
) -> (impl Service<Request<()>, Response = Response<()>, Error = http::Error, Future: Send> + Clone, Arrivals)
{
    let arrivals = Arrivals::new();
    let recorded = arrivals.clone();
    let service = tower::service_fn(move |_: Request<()>| {
        recorded.note();
        let number = recorded.times().len();
        let delay = if number <= slow { delay } else { Duration::ZERO };
        async move {
            tokio::time::sleep(delay).await;
            let status = if number == 1 { status } else { 200 };
            Response::builder().status(status).header("retry-after", "30").body(())
        }
    });
    (service, arrivals)
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_replaces_permits_that_expire_before_readiness() {
    for (margin, sliding) in [(0, false), (0, true), (500, false)] {
        let quota = Quota::per_second(10).unwrap().with_margin(Duration::from_millis(margin)).unwrap();
        let (service, arrivals) = slow_at_first(8, Duration::from_secs(10), 200);
        let slots = tower::limit::ConcurrencyLimitLayer::new(8).layer(service);
        let calls: Vec<_> = if sliding {
            let limited = RateLimitLayer::new(LocalLimiter::sliding_window(quota)).layer(slots);
            (0..100).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect()
        } else {
            let limited = RateLimitLayer::new(LocalLimiter::token_bucket(quota)).layer(slots);
            (0..100).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect()
        };
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(arrivals.times().len(), 100);
        let most = arrivals.most_in(Duration::from_secs(1));
        assert!(
            most <= 10,
            "{most} requests in one second, with a margin of {margin} ms, sliding window: {sliding}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn permit_expires_if_a_pause_starts_before_the_inner_service_is_ready() {
    let (service, arrivals) = slow_at_first(1, Duration::from_secs(1), 429);
    let slot = tower::limit::ConcurrencyLimitLayer::new(1).layer(service);
    let limiter = LocalLimiter::unlimited();
    let limited = RateLimitLayer::new(limiter.clone()).layer(slot);
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let arrivals = arrivals.times();
    assert!(arrivals[1] - arrivals[0] >= Duration::from_secs(31), "{:?}", arrivals[1] - arrivals[0]);
    assert_eq!(limiter.snapshot().in_flight, 0, "a replaced permit no longer counts as in flight");
}

#[tokio::test(start_paused = true)]
async fn permit_of_an_unpolled_waiter_expires_over_time_or_on_new_server_limits() {
    let none_remain = [(HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"a\";r=0;t=60"))];
    let none_remain = HeaderMap::from_iter(none_remain);
    for (limited, by_pause) in [(true, true), (true, false), (false, false)] {
        let window =
            LocalLimiter::sliding_window(Quota::new(2, Duration::from_secs(10)).unwrap().without_margin())
                .with_server_remaining();
        let permit = window.acquire_with(&costing(2)).await.unwrap();
        let mut first = task::spawn(window.acquire_with(&PermitRequest::new()));
        let mut second = task::spawn(window.acquire_with(&PermitRequest::new()));
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        tokio::time::advance(Duration::from_millis(10_001)).await;
        assert_ready_ok!(first.poll());
        // The second waiter got its permit together with the first waiter, but is not polled before the next window.
        assert!(second.is_woken());
        if limited {
            match by_pause {
                true => window.pause_until(Instant::now() + Duration::from_secs(60)),
                false => permit.complete(&ResponseInfo::new(StatusCode::OK, &none_remain)),
            }
            assert_pending!(second.poll());
            let start = Instant::now();
            second.await.unwrap();
            assert!(start.elapsed() >= Duration::from_secs(60));
        } else {
            tokio::time::advance(Duration::from_secs(15)).await;
            assert_ready_ok!(second.poll());
            assert_eq!(
                window.snapshot().available,
                1,
                "the waiter took a second permit, which counts in the current window"
            );
        }
        assert_eq!(window.snapshot().queued, 0);
    }
}
