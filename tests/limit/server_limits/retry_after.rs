//! Tests of the pauses that a `Retry-After` header requests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use tower::ServiceExt;
use tower_outbound::limit::RateLimitLayer;

use super::{
    Server, ample_limiter, assert_all_succeed, one_per_second_limiter, response, seconds, settle,
    spawn_calls, times,
};

#[tokio::test(start_paused = true)]
async fn retry_after_extends_a_pause_and_never_shortens_it() {
    let (server, limiter) = (Server::start(), ample_limiter());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    /// The arrival time of a response, its status and headers, and the resulting end of the pause. Times are in seconds
    /// since the start.
    type Requested<'a> = (f64, u16, &'a [(&'a str, &'a str)], u64);
    let requested: [Requested<'_>; 5] = [
        (1.0, 429, &[("retry-after", "5")], 6),
        (2.0, 503, &[("retry-after", "1")], 6),
        (3.0, 429, &[("retry-after", "10")], 13),
        (4.0, 429, &[("retry-after", "0")], 13),
        // `Retry-After` takes precedence over an earlier reset time in the `ratelimit` header.
        (5.0, 429, &[("retry-after", "11"), ("ratelimit", r#""default";r=5;t=1"#)], 16),
    ];
    for (after, status, headers, _) in requested {
        server.will_respond(after, response(status, headers));
    }
    let mut calls = spawn_calls(&service, requested.len()).await;
    for (at, _, _, until) in requested {
        tokio::time::sleep_until(server.start + Duration::from_secs_f64(at + 0.5)).await;
        let paused = limiter.snapshot().paused_until.expect("the limiter is paused") - server.start;
        assert!(
            paused >= seconds(until) && paused <= seconds(until) + Duration::from_millis(2),
            "{paused:?}"
        );
        calls.extend(spawn_calls(&service, 2).await);
    }
    assert_all_succeed(calls).await;
    server.assert_arrivals(times(&[(5, 0.0), (10, 16.0)]));
    assert_eq!(limiter.snapshot().paused_until, None);
}

/// If the status is not 429, 503 or 529, `Retry-After` delays only the call that received the header. Examples are a
/// redirect and the status 522 of a CDN.
#[tokio::test(start_paused = true)]
async fn retry_after_pauses_all_callers_only_if_the_status_is_429_503_or_529() {
    for (status, pauses) in [
        (429, true),
        (503, true),
        (529, true),
        (202, false),
        (301, false),
        (500, false),
        (502, false),
        (504, false),
        (520, false),
        (521, false),
        (522, false),
        (523, false),
        (524, false),
        (530, false),
    ] {
        for (name, value) in [("retry-after", "1.2, 3"), ("retry-after-ms", "2999.9, 7")] {
            let server = Server::start();
            let layer = RateLimitLayer::new(ample_limiter());
            let service = server.with_layer(&layer);
            server.respond_once(&service, response(status, &[(name, value)])).await;
            assert_all_succeed(spawn_calls(&service, 1).await).await;
            server.assert_arrivals([if pauses { 3.0 } else { 0.0 }]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_get_permits_in_fifo_order_at_the_quota_rate_after_a_pause() {
    let (server, limiter) = (Server::start(), one_per_second_limiter());
    let service = server.with_layer(&RateLimitLayer::new(limiter.clone()));
    server.will_respond(1.0, response(429, &[("retry-after", "10")]));
    let first = spawn_calls(&service, 1).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..20)
        .map(|number| {
            let (service, order) = (service.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                service.oneshot(Request::new(())).await.unwrap();
                order.lock().unwrap().push(number);
            })
        })
        .collect();
    settle().await;
    assert_all_succeed(first).await;
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    // The first waiter may have been granted just before the pause, because the 429 response arrives after one second.
    let arrivals = server.arrivals.lock().unwrap().clone();
    let after: Vec<_> = arrivals.into_iter().filter(|at| *at - server.start > seconds(2)).collect();
    assert!(after.len() >= 19 && after[0] - server.start >= seconds(11), "{after:?}");
    assert!(after.windows(2).all(|pair| pair[1] - pair[0] >= seconds(1)), "{after:?}");
}
