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

type BreakerError = CircuitBreakerError<BoxError>;

/// Opens for a minute after two failures in a row.
fn breaker() -> CircuitBreakerLayer {
    let builder = CircuitBreakerLayer::builder().sliding_window_size(2).minimum_number_of_calls(2);
    builder.failure_rate_threshold(1.0).wait_duration_in_open(Duration::from_secs(60)).build().unwrap()
}

/// The conversion of the guide page: an open circuit counts as not sent, and the client's error is unwrapped.
fn unwrap_breaker(error: CircuitBreakerError<BoxError>) -> BoxError {
    match error {
        open @ CircuitBreakerError::OpenCircuit => DeliveryError::not_sent(open).into(),
        CircuitBreakerError::Inner(error) => error,
    }
}

#[tokio::test(start_paused = true)]
async fn above_counts_calls() {
    let scripted = ScriptedService::new([Io(ConnectionReset)]);
    let service = ServiceBuilder::new().layer(breaker()).layer(RetryLayer::new()).service(scripted.clone());
    for _ in 0..2 {
        let error = service.clone().oneshot(get(URI)).await.unwrap_err().into_inner().unwrap();
        assert_eq!(error.report().unwrap().attempt_count(), 3);
    }
    assert_eq!(scripted.calls(), 6);
    let error: CircuitBreakerError<Error> = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_circuit_open());
    assert_eq!(scripted.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn below_counts_attempts_and_rejects_the_remaining_ones() {
    let scripted = ScriptedService::new([Io(ConnectionReset)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(breaker()).service(scripted.clone());
    let error = service.clone().oneshot(get(URI)).await.unwrap_err();
    assert!(cause::<BreakerError>(&error).is_some_and(BreakerError::is_circuit_open));
    let report = error.report().unwrap();
    assert_eq!(
        (outcomes(report), report.stop_reason()),
        (vec![Outcome::Failed; 3], Some(StopReason::Exhausted))
    );
    assert_eq!(scripted.calls(), 2);

    // The retry layer does not know the error's type, so it does not retry a POST.
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotIdempotent));
    assert_eq!(scripted.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn retries_post_if_an_open_circuit_is_converted_to_not_sent() {
    let scripted = ScriptedService::new([Io(ConnectionReset)]);
    let (breaker, client) = (breaker(), scripted.clone());
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).map_err(unwrap_breaker).layer(breaker).service(client);
    for expected in [vec![Outcome::Failed], vec![Outcome::Failed], vec![Outcome::NotSent; 3]] {
        let error = service.clone().oneshot(request("POST", URI)).await.unwrap_err();
        assert_eq!(outcomes(error.report().unwrap()), expected);
    }
    assert_eq!(methods(&scripted), ["POST", "POST"]);
}

/// `source()` of the breaker's error does not return the error that it wraps.
#[tokio::test(start_paused = true)]
async fn below_an_inner_error_proves_nothing_unless_it_is_unwrapped() {
    let scripted = ScriptedService::new([Refused, Status(200)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(breaker()).service(scripted.clone());
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Failed]);

    let scripted = ScriptedService::new([Refused, Status(200)]);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).map_err(unwrap_breaker).layer(breaker());
    let response = service.service(scripted.clone()).oneshot(request("POST", URI)).await.unwrap();
    let expected = [Outcome::NotSent, Outcome::Response(http::StatusCode::OK)];
    assert_eq!(outcomes(Report::from_response(&response).unwrap()), expected);
}

#[tokio::test(start_paused = true)]
async fn between_retry_and_limit_a_rejected_request_spends_no_permit() {
    let (scripted, limiter) = (ScriptedService::new([Io(ConnectionReset)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(breaker())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(scripted.clone());
    assert!(service.oneshot(get(URI)).await.is_err());
    assert_eq!((scripted.calls(), limiter.snapshot().granted), (2, 2));
}

/// By default, refusals of the limiter open a breaker because they are errors, although the server is healthy. Failed
/// responses of the server do not open it.
#[tokio::test(start_paused = true)]
async fn above_needs_a_classifier_for_refusals_and_failed_responses() {
    type CallResult<B> = Result<http::Response<B>, Error>;
    let builder = || CircuitBreakerLayer::builder().sliding_window_size(2).minimum_number_of_calls(2);
    let limit = || RateLimitLayer::new(bucket(2)).with_max_wait(Duration::ZERO);
    let is_failure = |result: &CallResult<Body>| match result {
        Ok(response) => response.status().is_server_error(),
        Err(error) => !error.is_rate_limited(),
    };

    let service = limit().layer(ScriptedService::new([Status(200)]));
    let by_default = builder().build().unwrap().layer(service.clone());
    let classified = builder().failure_classifier(is_failure).build().unwrap().layer(service);
    for _ in 0..3 {
        let _ = by_default.clone().oneshot(get(URI)).await;
    }
    assert!(by_default.oneshot(get(URI)).await.unwrap_err().is_circuit_open());
    for _ in 0..4 {
        assert!(!classified.clone().oneshot(get(URI)).await.is_err_and(|error| error.is_circuit_open()));
    }

    let service = RateLimitLayer::new(bucket(20)).layer(ScriptedService::new([Status(503)]));
    let by_default = builder().build().unwrap().layer(service.clone());
    let classified = builder().failure_classifier(is_failure).build().unwrap().layer(service);
    for _ in 0..2 {
        assert!(by_default.clone().oneshot(get(URI)).await.is_ok());
        assert!(classified.clone().oneshot(get(URI)).await.is_ok());
    }
    assert!(by_default.oneshot(get(URI)).await.is_ok());
    assert!(classified.oneshot(get(URI)).await.unwrap_err().is_circuit_open());
}
