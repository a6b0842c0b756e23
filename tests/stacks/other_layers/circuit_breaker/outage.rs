//! Tests the recipe of the guide's page `other_layers` for a circuit breaker, while the service is down.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http::Method;
use tokio::{net::TcpSocket, time::Instant};
use tower::{Layer, ServiceBuilder, ServiceExt, layer::layer_fn, limit::GlobalConcurrencyLimitLayer};
use tower_outbound::{
    Client, ErrorKind, ExponentialBackoff, Quota,
    call::{Outcome, StopReason},
    limit::LocalLimiter,
    retry::RetryLayer,
    stack::{StackBuilder, TransportService},
};
use tower_resilience_circuitbreaker::{CircuitBreakerLayer, SlidingWindowType};

use super::{
    super::{
        URI, outcomes,
        support::{Scripted::*, ScriptedService, get},
    },
    is_failure, unwrap_breaker, with_breaker,
};

/// Returns a limiter that counts its permits, and whose quota no test reaches.
fn counting() -> LocalLimiter {
    LocalLimiter::sliding_window(Quota::per_second(1_000_000).unwrap())
}

fn api(limiter: &LocalLimiter) -> StackBuilder {
    Client::builder(URI).unwrap().without_credential().with_limiter(limiter.clone())
}

#[tokio::test(start_paused = true)]
async fn recipe_makes_9_attempts_in_1_000_calls_of_an_outage_and_then_fails_immediately() {
    let (service, limiter) = (ScriptedService::new([Refused]), counting());
    let client = with_breaker(api(&limiter)).unwrap().client_with_service(service.clone()).unwrap();
    for call in 0..1_000 {
        let start = Instant::now();
        let error = client.get("/v1").await.unwrap_err();
        if call < 3 {
            assert_eq!(
                (error.kind(), error.report().unwrap().attempt_count()),
                (ErrorKind::ConnectRefused, 3)
            );
        } else {
            assert_eq!((error.kind(), start.elapsed()), (ErrorKind::CircuitOpen, Duration::ZERO), "{call}");
            assert!(!error.may_have_been_processed());
        }
    }
    assert_eq!((service.calls(), limiter.snapshot().granted), (9, 9));
}

/// Binds a port on which nothing listens.
fn refusing() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A call of this test waits at most 1 ms before a retry. Four calls run at once, and two more start before the third
/// call has failed.
#[tokio::test]
async fn recipe_makes_at_most_18_attempts_in_1_000_calls_at_once_to_a_port_that_refuses_connections() {
    let (_socket, address) = refusing();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let counting = layer_fn(move |inner: TransportService| {
        let count = Arc::clone(&count);
        inner.map_request(move |request| {
            count.fetch_add(1, Relaxed);
            request
        })
    });
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    let builder = Client::builder(format!("http://{address}"))
        .unwrap()
        .without_credential()
        .with_retry(RetryLayer::new().with_backoff(backoff))
        .with_transport_layer(counting)
        .with_outer_layer(GlobalConcurrencyLimitLayer::new(4));
    let client = with_breaker(builder).unwrap().client().unwrap();
    let calls = join_all((0..1_000).map(|_| client.get("/v1").send())).await;
    let kinds: Vec<_> = calls.into_iter().map(|call| call.unwrap_err().kind()).collect();
    assert!(kinds.contains(&ErrorKind::ConnectRefused) && kinds[999] == ErrorKind::CircuitOpen);
    let attempts = attempts.load(Relaxed);
    assert!((9..=18).contains(&attempts), "{attempts} attempts");
}

/// The circuit is half open at the next call, because it stays open for 1 ns of the system's clock.
#[tokio::test(start_paused = true)]
async fn recipe_opens_after_three_5xx_in_a_row_and_closes_after_one_success() {
    let responses = [500, 500, 429, 500, 500, 500, 500, 200, 200].map(Status);
    let service = ScriptedService::new(responses);
    let breaker = CircuitBreakerLayer::builder().failure_classifier(is_failure).consecutive_failures(3);
    let breaker = breaker.wait_duration_in_open(Duration::from_nanos(1)).permitted_calls_in_half_open(1);
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&states);
    let breaker = breaker.on_state_transition(move |_, to| seen.lock().unwrap().push(format!("{to:?}")));
    let layer = ServiceBuilder::new().map_err(unwrap_breaker).layer(breaker.build().unwrap());
    let builder = api(&counting()).with_retry(RetryLayer::new().with_max_attempts(1).unwrap());
    let client = builder.with_outer_layer(layer).client_with_service(service).unwrap();
    let mut all = Vec::new();
    for _ in 0..9 {
        all.push(client.get("/v1").await.map(|response| response.status().as_u16()).unwrap_or(0));
    }
    // The 429 resets the count. The third 500 after it opens the circuit, and the probe that gets the fourth opens it
    // again.
    assert_eq!(all, [500, 500, 429, 500, 500, 500, 500, 200, 200]);
    assert_eq!(*states.lock().unwrap(), ["Open", "HalfOpen", "Open", "HalfOpen", "Closed"]);
}

#[tokio::test(start_paused = true)]
async fn open_circuit_below_the_stack_costs_one_permit_and_no_retry() {
    let (service, limiter) = (ScriptedService::new([Refused]), counting());
    let breaker = CircuitBreakerLayer::builder().consecutive_failures(3).build().unwrap();
    let layer = ServiceBuilder::new().map_err(unwrap_breaker).layer(breaker);
    let client = api(&limiter).with_transport_layer(layer).client_with_service(service.clone()).unwrap();
    let error = client.get("/v1").await.unwrap_err();
    assert_eq!((error.kind(), service.calls()), (ErrorKind::ConnectRefused, 3));
    for method in [Method::GET, Method::POST] {
        let (before, start) = (limiter.snapshot().granted, Instant::now());
        let error = client.request(method, "/v1").await.unwrap_err();
        let report = error.report().unwrap();
        assert_eq!((error.kind(), outcomes(report)), (ErrorKind::CircuitOpen, vec![Outcome::NotSent]));
        assert_eq!(report.stop_reason(), Some(StopReason::NotRetryable));
        assert!(start.elapsed().is_zero() && !error.may_have_been_processed());
        assert_eq!((limiter.snapshot().granted - before, service.calls()), (1, 3));
    }
}

/// Returns how many failed calls open a breaker after this number of successes. Returns `None` if 100 do not.
async fn failures_until_open(breaker: CircuitBreakerLayer, successes: usize) -> Option<usize> {
    let script = std::iter::repeat_n(Status(200), successes).chain([Refused]);
    let service = breaker.layer(ScriptedService::new(script));
    for _ in 0..successes {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    for failures in 0..100 {
        if service.clone().oneshot(get(URI)).await.unwrap_err().is_circuit_open() {
            return Some(failures);
        }
    }
    None
}

/// These are facts about tower-resilience-circuitbreaker 0.14, which the guide lists.
#[tokio::test(start_paused = true)]
async fn ratio_of_a_count_based_window_opens_late_and_failures_in_a_row_do_not() {
    let builder = || CircuitBreakerLayer::builder().failure_rate_threshold(0.5).minimum_number_of_calls(3);
    let count_based = || builder().sliding_window_size(10).build().unwrap();
    let minute = Duration::from_secs(60);
    let timed = builder().sliding_window_type(SlidingWindowType::TimeBased).sliding_window_duration(minute);
    let in_a_row = || CircuitBreakerLayer::builder().consecutive_failures(3).build().unwrap();
    assert_eq!(failures_until_open(count_based(), 0).await, Some(10));
    assert_eq!(failures_until_open(count_based(), 20).await, Some(20));
    assert_eq!(failures_until_open(count_based(), 1_000).await, None);
    assert_eq!(failures_until_open(timed.build().unwrap(), 0).await, Some(3));
    for successes in [0, 20, 1_000] {
        assert_eq!(failures_until_open(in_a_row(), successes).await, Some(3));
    }
}
