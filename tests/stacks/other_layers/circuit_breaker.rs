//! Tests tower-resilience's circuit breaker, and the recipe for it in the guide's page `other_layers`.

use std::time::Duration;

use futures_util::future::join_all;
use http::{Method, Response};
use tokio::time::Instant;
use tower::{BoxError, ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_outbound::{
    Body, Client, Error, ErrorKind, Quota,
    call::{Outcome, StopReason},
    error::DeliveryError,
    limit::LocalLimiter,
    stack::StackBuilder,
};
use tower_resilience_circuitbreaker::{CircuitBreakerConfigError, CircuitBreakerError, CircuitBreakerLayer};

use super::{
    URI, outcomes,
    support::{Scripted::*, ScriptedService},
};

/// Converts the breaker's error: an open circuit is marked, and any other error is returned as it is.
fn unwrap_breaker<E: Into<BoxError>>(error: CircuitBreakerError<E>) -> BoxError {
    match error {
        CircuitBreakerError::OpenCircuit => DeliveryError::circuit_open("too many failures").into(),
        CircuitBreakerError::Inner(error) => error.into(),
    }
}

/// Returns whether the service has failed. A 429 is no failure, and neither is a refusal of the limiter, unless an
/// attempt failed before.
fn is_failure(result: &Result<Response<Body>, Error>) -> bool {
    match result {
        Ok(response) => response.status().is_server_error(),
        Err(error) => error.is_service() || error.is_timeout() || error.may_have_been_processed(),
    }
}

fn with_breaker(builder: StackBuilder) -> Result<StackBuilder, CircuitBreakerConfigError> {
    let breaker = CircuitBreakerLayer::builder()
        .failure_classifier(is_failure)
        .consecutive_failures(3)
        .wait_duration_in_open(Duration::from_secs(30))
        .permitted_calls_in_half_open(1)
        .build()?;
    Ok(builder.with_outer_layer(ServiceBuilder::new().map_err(unwrap_breaker).layer(breaker)))
}

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

/// Four calls run at once, and two more start before the third call has failed.
#[tokio::test(start_paused = true)]
async fn recipe_makes_at_most_18_attempts_in_1_000_calls_at_once() {
    let (service, limiter) = (ScriptedService::new([Refused]), counting());
    let builder = api(&limiter).with_outer_layer(GlobalConcurrencyLimitLayer::new(4));
    let client = with_breaker(builder).unwrap().client_with_service(service.clone()).unwrap();
    let calls = join_all((0..1_000).map(|_| client.get("/v1").send())).await;
    let kinds: Vec<_> = calls.into_iter().map(|call| call.unwrap_err().kind()).collect();
    assert!(kinds.contains(&ErrorKind::ConnectRefused) && kinds[999] == ErrorKind::CircuitOpen);
    assert!((9..=18).contains(&service.calls()), "{} attempts", service.calls());
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
