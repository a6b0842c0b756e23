//! Tests of requests in flight. When a server reports its remaining permits, it may not have counted these requests
//! yet.

use super::*;

#[tokio::test(start_paused = true)]
async fn call_is_in_flight_until_it_ends_or_is_dropped() {
    let limiter = ample_limiter();
    let (server, service) = Server::behind(&limiter);
    let in_flight = || limiter.snapshot().in_flight;

    server.will_respond(1.0, response(500, &[]));
    server.will_respond(2.0, ScriptedResponse::io_error(io::ErrorKind::ConnectionReset));
    server.will_respond(3_600.0, response(200, &[]));
    let [failed, reset, dropped] = [1, 3, 7].map(|cost| tokio::spawn(service.clone().oneshot(costing(cost))));
    settle().await;
    assert_eq!(in_flight(), 11);
    failed.await.unwrap().unwrap();
    assert_eq!(in_flight(), 10);
    reset.await.unwrap().unwrap_err();
    assert_eq!(in_flight(), 7);
    dropped.abort();
    settle().await;
    assert_eq!(in_flight(), 0, "a dropped call is no longer in flight");

    // The server may count the failed request and the dropped request only after sending its next response.
    server.respond_once(&service, remaining(12, 5)).await;
    assert_eq!(limiter.snapshot().available, 2);
    advance(seconds(11)).await;

    // A request that is refused, or dropped while queued, was never in flight.
    server.respond_once(&service, remaining(0, 5)).await;
    let waiting = spawn_calls(&service, 3).await;
    assert_eq!((in_flight(), limiter.snapshot().queued), (0, 3));
    waiting.iter().for_each(JoinHandle::abort);
    settle().await;
    let no_wait = server.with_layer(&RateLimitLayer::new(limiter.clone()).with_max_wait(seconds(0)));
    assert!(no_wait.oneshot(costing(1)).await.unwrap_err().is_rate_limited());
    assert_eq!((in_flight(), limiter.snapshot().queued), (0, 0));

    // No request is in flight, so the limiter subtracts nothing from the next report of remaining permits.
    advance(seconds(5)).await;
    server.respond_once(&service, remaining(2, 5)).await;
    assert_eq!((in_flight(), limiter.snapshot().available), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn limiter_never_sends_more_requests_than_the_server_allows() {
    // The server has one window, and reports the remaining permits with every response. Requests and responses overtake
    // one another. The first requests are sent before any limit is known.
    for seed in 0..50 {
        let limit = 1 + (seed as u32 * 7) % 40;
        for limiter in [LocalLimiter::without_quota(), ample_limiter()] {
            let server = ServerLimit::fixed_window(limit, seconds(30)).with_headers(LimitHeaders::XRateLimit);
            let callers = (1 + seed as usize % 10).min(limit as usize);
            let traffic = Traffic { callers, hop: (Duration::ZERO, millis(800)), seed };
            traffic.run(&limiter, &server, seconds(25), seconds(25)).await;
            let (accepted, rejected) = (server.accepted(), server.rejected());
            let case = format!("limit {limit}, {callers} callers: {accepted} accepted, {rejected} rejected");
            assert!(rejected == 0 && accepted <= limit.into(), "{case}");
        }
    }
}
