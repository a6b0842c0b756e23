//! tower-resilience's circuit breaker.

use std::{io::ErrorKind::ConnectionReset, time::Duration};

use tower::{BoxError, Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Body, Error, Report,
    call::{Outcome, StopReason},
    error::DeliveryError,
    limit::RateLimitLayer,
    retry::RetryLayer,
};
use tower_resilience_circuitbreaker::{CircuitBreakerError, CircuitBreakerLayer};

use super::{
    URI, bucket, methods, outcomes,
    support::{Scripted::*, ScriptedService, cause, get, request},
};

type Open = CircuitBreakerError<BoxError>;

/// Opens for a minute when the last two have failed.
fn breaker() -> CircuitBreakerLayer {
    let builder = CircuitBreakerLayer::builder().sliding_window_size(2).minimum_number_of_calls(2);
    builder.failure_rate_threshold(1.0).wait_duration_in_open(Duration::from_secs(60)).build().unwrap()
}

/// Marks errors as on the page `interplay`: an open circuit sends nothing, and the client's error keeps its proof.
fn mark(error: CircuitBreakerError<BoxError>) -> BoxError {
    match error {
        open @ CircuitBreakerError::OpenCircuit => DeliveryError::not_sent(open).into(),
        CircuitBreakerError::Inner(error) => error,
    }
}

#[tokio::test(start_paused = true)]
async fn above_it_counts_calls() {
    let probe = ScriptedService::new([Io(ConnectionReset)]);
    let service = ServiceBuilder::new().layer(breaker()).layer(RetryLayer::new()).service(probe.clone());
    for _ in 0..2 {
        let error = service.clone().oneshot(get(URI)).await.unwrap_err().into_inner().unwrap();
        assert_eq!(error.report().unwrap().attempt_count(), 3);
    }
    assert_eq!(probe.calls(), 6);
    let error: CircuitBreakerError<Error> = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_circuit_open());
    assert_eq!(probe.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn below_it_counts_attempts_and_the_rest_of_them_meet_it_open() {
    let probe = ScriptedService::new([Io(ConnectionReset)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(breaker()).service(probe.clone());
    let error = service.clone().oneshot(get(URI)).await.unwrap_err();
    assert!(cause::<Open>(&error).is_some_and(Open::is_circuit_open));
    let report = error.report().unwrap();
    assert_eq!(
        (outcomes(report), report.stop_reason()),
        (vec![Outcome::Failed; 3], Some(StopReason::Exhausted))
    );
    assert_eq!(probe.calls(), 2);

    // Of a type that is not known it proves nothing.
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotIdempotent));
    assert_eq!(probe.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn retries_post_if_an_open_circuit_is_marked_not_sent() {
    let probe = ScriptedService::new([Io(ConnectionReset)]);
    let (breaker, client) = (breaker(), probe.clone());
    let service = ServiceBuilder::new().layer(RetryLayer::new()).map_err(mark).layer(breaker).service(client);
    for expected in [vec![Outcome::Failed], vec![Outcome::Failed], vec![Outcome::NotSent; 3]] {
        let error = service.clone().oneshot(request("POST", URI)).await.unwrap_err();
        assert_eq!(outcomes(error.report().unwrap()), expected);
    }
    assert_eq!(methods(&probe), ["POST", "POST"]);
}

/// It hides what it wraps from `source()`.
#[tokio::test(start_paused = true)]
async fn below_what_it_passes_on_proves_nothing_unless_it_is_unwrapped() {
    let probe = ScriptedService::new([Refused, Status(200)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(breaker()).service(probe.clone());
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Failed]);

    let probe = ScriptedService::new([Refused, Status(200)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).map_err(mark).layer(breaker());
    let response = service.service(probe.clone()).oneshot(request("POST", URI)).await.unwrap();
    let expected = [Outcome::NotSent, Outcome::Response(http::StatusCode::OK)];
    assert_eq!(outcomes(Report::from_response(&response).unwrap()), expected);
}

#[tokio::test(start_paused = true)]
async fn between_retry_and_limit_what_it_refuses_pays_no_permit() {
    let (probe, limiter) = (ScriptedService::new([Io(ConnectionReset)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(breaker())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(probe.clone());
    assert!(service.oneshot(get(URI)).await.is_err());
    assert_eq!((probe.calls(), limiter.snapshot().granted), (2, 2));
}

/// Our own refusals are errors: by default they open a breaker above, although the server is well. Its failures are
/// answers: by default they don't.
#[tokio::test(start_paused = true)]
async fn above_it_must_be_told_what_a_failure_is() {
    type ResponseSummary<B> = Result<http::Response<B>, Error>;
    let builder = || CircuitBreakerLayer::builder().sliding_window_size(2).minimum_number_of_calls(2);
    let limit = || RateLimitLayer::new(bucket(2)).with_max_wait(Duration::ZERO);
    let telling = |answered: &ResponseSummary<Body>| match answered {
        Ok(response) => response.status().is_server_error(),
        Err(error) => !error.is_rate_limited(),
    };

    let service = limit().layer(ScriptedService::new([Status(200)]));
    let by_default = builder().build().unwrap().layer(service.clone());
    let told = builder().failure_classifier(telling).build().unwrap().layer(service);
    for _ in 0..3 {
        let _ = by_default.clone().oneshot(get(URI)).await;
    }
    assert!(by_default.oneshot(get(URI)).await.unwrap_err().is_circuit_open());
    for _ in 0..4 {
        assert!(!told.clone().oneshot(get(URI)).await.is_err_and(|error| error.is_circuit_open()));
    }

    let service = RateLimitLayer::new(bucket(20)).layer(ScriptedService::new([Status(503)]));
    let by_default = builder().build().unwrap().layer(service.clone());
    let told = builder().failure_classifier(telling).build().unwrap().layer(service);
    for _ in 0..2 {
        assert!(by_default.clone().oneshot(get(URI)).await.is_ok());
        assert!(told.clone().oneshot(get(URI)).await.is_ok());
    }
    assert!(by_default.oneshot(get(URI)).await.is_ok());
    assert!(told.oneshot(get(URI)).await.unwrap_err().is_circuit_open());
}
