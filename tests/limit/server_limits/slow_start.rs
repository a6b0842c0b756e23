//! Tests of unlimited limiters, which follow only the server's limits, and of slow start after a pause.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::limit::{LocalLimiter, RateLimitLayer};

use super::{Server, assert_all_succeed, costing, remaining, response, seconds, settle, spawn_calls, times};

#[tokio::test(start_paused = true)]
async fn unlimited_limiter_follows_only_the_limits_of_the_server() {
    let (server, limiter) = (Server::start(), LocalLimiter::unlimited());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    assert_all_succeed(spawn_calls(&service, 1_000).await).await;
    server.assert_arrivals(times(&[(1_000, 0.0)]));
    server.respond_once(&service, remaining(2, 5)).await;
    assert_eq!(limiter.snapshot().available, 2);
    assert_all_succeed(spawn_calls(&service, 6).await).await;
    // Slow start begins with two permits, as many as remained before the reset. Two more permits follow within 100 ms.
    let slow_start = [times(&[(1_002, 0.0), (2, 5.0)]), vec![5.05, 5.1]].concat();
    server.assert_arrivals(&slow_start);
    tokio::time::sleep(seconds(2)).await;
    assert_all_succeed(spawn_calls(&service, 1_000).await).await;
    server.assert_arrivals([slow_start, times(&[(1_000, 7.1)])].concat());
    assert_eq!((limiter.snapshot().available, limiter.snapshot().queued), (u32::MAX, 0));
}

#[tokio::test(start_paused = true)]
async fn slow_start_sends_few_requests_at_the_end_of_a_pause() {
    let server = Server::start();
    let service = server.with_layer(&RateLimitLayer::new(LocalLimiter::unlimited()));
    server.respond_once(&service, response(429, &[("retry-after", "5")])).await;
    let waiting = spawn_calls(&service, 1_000).await;
    // After its first 429, the server rejects three more requests, each 120 ms after the request arrives.
    for _ in 0..3 {
        server.will_respond(0.12, response(429, &[("retry-after", "5")]));
    }
    assert_all_succeed(waiting).await;
    let mut arrivals = server.arrivals.lock().unwrap();
    assert!(
        *arrivals.last().unwrap() - server.start < Duration::from_secs_f64(16.34),
        "all requests must be sent soon after the third pause"
    );
    arrivals.truncate(8);
    drop(arrivals);
    server.assert_arrivals([5.0, 5.1, 10.22, 10.32, 15.34, 15.44, 15.49, 15.54]);
}

#[tokio::test(start_paused = true)]
async fn unlimited_limiter_uses_the_complete_quota_of_the_server_in_each_window() {
    let limiter = LocalLimiter::unlimited();
    let (start, sent, excess) =
        (Instant::now(), Arc::<Mutex<Vec<u64>>>::default(), Arc::<Mutex<u64>>::default());
    // The server allows 100 requests in each second of its clock. Every response reports the remaining requests of the
    // current second.
    let inner = {
        let (sent, excess) = (Arc::clone(&sent), Arc::clone(&excess));
        tower::service_fn(move |_: Request<()>| {
            let second = start.elapsed().as_secs();
            sent.lock().unwrap().push(second);
            let used = sent.lock().unwrap().iter().rev().take_while(|at| **at == second).count() as u64;
            *excess.lock().unwrap() += u64::from(used > 100);
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, Infallible>(remaining(100_u64.saturating_sub(used), 1))
            }
        })
    };
    let service = RateLimitLayer::new(limiter).layer(inner);
    let loops = (0..64).map(|_| {
        let service = service.clone();
        async move {
            while start.elapsed() < seconds(20) {
                service.clone().oneshot(Request::new(())).await.unwrap();
            }
        }
    });
    futures_util::future::join_all(loops).await;
    let sent = sent.lock().unwrap().len();
    assert!(
        (1_900..=2_100).contains(&sent) && *excess.lock().unwrap() == 0,
        "{sent} requests were sent, expected about 2,000 and none above the server's limit"
    );
}

#[tokio::test(start_paused = true)]
async fn slow_start_eventually_grants_a_cost_above_the_remaining_permits() {
    let (server, limiter) = (Server::start(), LocalLimiter::unlimited());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    server.respond_once(&service, remaining(1, 10)).await;
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(service.clone().oneshot(costing(2)))).collect();
    settle().await;
    let bounded = RateLimitLayer::new(limiter).with_max_wait(seconds(10) + Duration::from_millis(350));
    let last = tokio::spawn(server.with_layer(&bounded).oneshot(costing(2)));
    assert_all_succeed(calls).await;
    last.await.unwrap().unwrap();
    // Each of the five requests costs two permits. The rate starts at one permit per 100 ms and doubles every 100 ms.
    server.assert_arrivals([10.1, 10.2, 10.25, 10.3, 10.325]);
}
