//! Tests of requests in flight. When a server reports its remaining permits, it may not have counted these requests
//! yet.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use proptest::prelude::*;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{
    Error,
    limit::{LocalLimiter, RateLimitLayer},
};

use super::{
    RESET, Server, ample_limiter, assert_all_succeed, costing, remaining, response, seconds, settle,
    spawn_calls, times,
};
use crate::support::cases::cases;

#[tokio::test(start_paused = true)]
async fn limiter_does_not_subtract_requests_that_the_server_has_counted() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(ample_limiter()));
    for (permits, reset_after) in [(3, 5), (2, 4), (1, 3), (0, 2)] {
        server.will_respond(0.0, remaining(permits, reset_after));
        service.clone().oneshot(Request::new(())).await.unwrap();
        tokio::time::advance(seconds(1)).await;
    }
    service.oneshot(Request::new(())).await.unwrap();
    server.assert_arrivals([0.0, 1.0, 2.0, 3.0, 5.0]);
}

#[tokio::test(start_paused = true)]
async fn late_response_does_not_raise_the_remaining_permits() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(ample_limiter()));
    // The response to the first request arrives last and reports the permits that remained before the second and third
    // request.
    server.will_respond(3.0, remaining(9, 10));
    server.will_respond(1.0, remaining(8, 10));
    server.will_respond(1.0, remaining(2, 10));
    let first = spawn_calls(&service, 3).await;
    tokio::time::sleep(seconds(4)).await;
    // Two permits remain, but the server may not have counted the first request yet.
    let rest = spawn_calls(&service, 5).await;
    assert_all_succeed(first).await;
    assert_all_succeed(rest).await;
    server.assert_arrivals(times(&[(3, 0.0), (1, 4.0), (4, 11.0)]));
}

#[tokio::test(start_paused = true)]
async fn limiter_subtracts_requests_in_flight_from_the_remaining_permits() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(ample_limiter()));
    server.will_respond(1.0, remaining(5, 10));
    (0..3).for_each(|_| server.will_respond(3.0, response(200, &[])));
    let first = spawn_calls(&service, 4).await;
    tokio::time::sleep(seconds(2)).await;
    let rest = spawn_calls(&service, 10).await;
    assert_all_succeed(first).await;
    assert_all_succeed(rest).await;
    server.assert_arrivals(times(&[(4, 0.0), (2, 2.0), (8, 11.0)]));
}

#[tokio::test(start_paused = true)]
async fn completed_request_releases_its_complete_cost() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(ample_limiter()));
    server.will_respond(0.0, remaining(10, 5));
    service.clone().oneshot(costing(5)).await.unwrap();
    for _ in 0..3 {
        service.clone().oneshot(costing(5)).await.unwrap();
    }
    // The server reported ten remaining permits, enough for two requests that cost five permits each.
    server.assert_arrivals([0.0, 0.0, 0.0, 5.0]);
}

#[tokio::test(start_paused = true)]
async fn call_is_in_flight_until_it_ends_or_is_dropped() {
    let (server, limiter) = (Server::start(), ample_limiter());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    let in_flight = || limiter.snapshot().in_flight;

    server.will_respond(1.0, response(500, &[]));
    server.will_respond(2.0, response(RESET, &[]));
    server.will_respond(3_600.0, response(200, &[]));
    let mut calls: Vec<_> = [1, 3, 7].map(|cost| tokio::spawn(service.clone().oneshot(costing(cost)))).into();
    settle().await;
    assert_eq!(in_flight(), 11);
    let dropped = calls.pop().unwrap();
    let failing = calls.pop().unwrap();
    calls.pop().unwrap().await.unwrap().unwrap();
    assert_eq!(in_flight(), 10);
    failing.await.unwrap().unwrap_err();
    assert_eq!(in_flight(), 7);
    dropped.abort();
    settle().await;
    assert_eq!(in_flight(), 0, "a dropped call is no longer in flight");

    // The server may count the failed request and the dropped request only after sending its next response.
    server.respond_once(&service, remaining(12, 5)).await;
    assert_eq!(limiter.snapshot().available, 2);
    tokio::time::advance(seconds(11)).await;

    // A request that is refused, or dropped while queued, was never in flight.
    server.respond_once(&service, remaining(0, 5)).await;
    let waiting = spawn_calls(&service, 3).await;
    assert_eq!((in_flight(), limiter.snapshot().queued), (0, 3));
    waiting.iter().for_each(JoinHandle::abort);
    settle().await;
    let no_wait = server.with_layer(&RateLimitLayer::new(limiter.clone()).with_max_wait(Duration::ZERO));
    assert!(no_wait.oneshot(Request::new(())).await.unwrap_err().is_rate_limited());
    assert_eq!((in_flight(), limiter.snapshot().queued), (0, 0));

    // No request is in flight, so the limiter subtracts nothing from the next report of remaining permits.
    tokio::time::advance(seconds(5)).await;
    server.respond_once(&service, remaining(2, 5)).await;
    assert_eq!((in_flight(), limiter.snapshot().available), (0, 2));
}

/// The timing of one request, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Journey {
    /// The time since the previous request was sent.
    gap: u64,
    /// The time until the request reaches the server.
    request: u64,
    /// The time until the response reaches the client.
    response: u64,
}

fn journeys() -> impl Strategy<Value = Vec<Journey>> {
    let journey = (0..300_u64, 0..800_u64, 0..800_u64);
    let journey = journey.prop_map(|(gap, request, response)| Journey {
        // Two thirds of the gaps are zero, so two thirds of the requests are sent together with the previous request.
        gap: gap.saturating_sub(200),
        request,
        response,
    });
    prop::collection::vec(journey, 1..60)
}

proptest! {
    #![proptest_config(cases(300))]

    /// The server has one window of `limit` requests and reports the remaining permits with every response. Requests
    /// and responses overtake one another.
    #[test]
    fn limiter_never_sends_more_requests_than_the_server_allows(
        limit in 1..40_u64, before_first_response in 1..10_usize, journeys in journeys(), unlimited: bool,
    ) {
        const WINDOW: u64 = 30;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let arrived = runtime.unwrap().block_on(async {
            let limiter = if unlimited { LocalLimiter::unlimited() } else { ample_limiter() };
            let start = Instant::now();
            let arrived = Arc::new(Mutex::new(0_u64));
            let service = {
                let arrived = Arc::clone(&arrived);
                RateLimitLayer::new(limiter).layer(tower::service_fn(move |request: Request<()>| {
                    let arrived = Arc::clone(&arrived);
                    async move {
                        let journey = *request.extensions().get::<Journey>().unwrap();
                        tokio::time::sleep(Duration::from_millis(journey.request)).await;
                        let response = {
                            let mut arrived = arrived.lock().unwrap();
                            let elapsed = start.elapsed().as_secs();
                            if elapsed < WINDOW {
                                *arrived += 1;
                            }
                            remaining(limit.saturating_sub(*arrived), WINDOW.saturating_sub(elapsed))
                        };
                        tokio::time::sleep(Duration::from_millis(journey.response)).await;
                        Ok::<_, Error>(response)
                    }
                }))
            };
            let call = |journey: Journey| {
                let mut request = Request::new(());
                request.extensions_mut().insert(journey);
                service.clone().oneshot(request)
            };
            // The first requests are sent before any limit is known. All later requests are sent after the first
            // response.
            let mut journeys = journeys.into_iter();
            let mut calls = JoinSet::new();
            for journey in journeys.by_ref().take(before_first_response.min(limit as usize)) {
                calls.spawn(call(journey));
            }
            calls.join_next().await.unwrap().unwrap().unwrap();
            for journey in journeys {
                tokio::time::sleep(Duration::from_millis(journey.gap)).await;
                calls.spawn(call(journey));
            }
            while let Some(call) = calls.join_next().await {
                call.unwrap().unwrap();
            }
            *arrived.lock().unwrap()
        });
        prop_assert!(arrived <= limit, "{} requests arrived, but the server allows {}", arrived, limit);
    }
}
