//! Tests tower-resilience's circuit breaker around, between and inside the layers of this crate.

use std::{io::ErrorKind::ConnectionReset, time::Duration};

use tower::{BoxError, Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Body, Error, Report,
    call::{Outcome, StopReason},
    limit::{InFlightBody, RateLimitLayer},
    retry::RetryLayer,
};
use tower_resilience_circuitbreaker::{CircuitBreakerError, CircuitBreakerLayer};

use super::{
    super::{
        URI, bucket, methods, outcomes,
        support::{Scripted::*, ScriptedService, cause, get, request},
    },
    unwrap_breaker,
};

type BreakerError = CircuitBreakerError<BoxError>;

/// Creates a circuit breaker that opens for a minute after two failures in a row.
fn breaker() -> CircuitBreakerLayer {
    let builder = CircuitBreakerLayer::builder().sliding_window_size(2).minimum_number_of_calls(2);
    builder.failure_rate_threshold(1.0).wait_duration_in_open(Duration::from_secs(60)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn circuit_breaker_around_the_retry_layer_counts_calls() {
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
async fn breaker_inside_the_retry_layer_counts_attempts_and_rejects_them_once_open() {
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

    // The retry layer does not recognize the breaker's error type, so it does not retry a POST.
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotIdempotent));
    assert_eq!(scripted.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn post_that_an_open_circuit_rejects_is_not_sent_and_not_retried() {
    let scripted = ScriptedService::new([Io(ConnectionReset)]);
    let (breaker, client) = (breaker(), scripted.clone());
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).map_err(unwrap_breaker).layer(breaker).service(client);
    for expected in [vec![Outcome::Failed], vec![Outcome::Failed], vec![Outcome::NotSent]] {
        let error = service.clone().oneshot(request("POST", URI)).await.unwrap_err();
        assert_eq!(outcomes(error.report().unwrap()), expected);
    }
    assert_eq!(methods(&scripted), ["POST", "POST"]);
}

/// `source()` of a circuit breaker's error does not return the wrapped error. The retry layer therefore cannot read the
/// outcome.
#[tokio::test(start_paused = true)]
async fn connect_error_inside_a_breaker_error_counts_as_not_sent_only_if_unwrapped() {
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
async fn request_rejected_by_a_breaker_between_retry_and_limit_spends_no_permit() {
    let (scripted, limiter) = (ScriptedService::new([Io(ConnectionReset)]), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(breaker())
        .layer(RateLimitLayer::new(limiter.clone()))
        .service(scripted.clone());
    assert!(service.oneshot(get(URI)).await.is_err());
    assert_eq!((scripted.calls(), limiter.snapshot().granted), (2, 2));
}

/// A breaker counts errors. By default, the limiter's refusals therefore open the breaker, although the server is
/// healthy. Failed responses do not open the breaker.
#[tokio::test(start_paused = true)]
async fn breaker_around_a_stack_needs_a_classifier_for_refusals_and_failed_responses() {
    type CallResult<B> = Result<http::Response<B>, Error>;
    let builder = || CircuitBreakerLayer::builder().sliding_window_size(2).minimum_number_of_calls(2);
    let limit = || RateLimitLayer::new(bucket(2)).with_max_wait(Duration::ZERO);
    let is_failure = |result: &CallResult<InFlightBody<Body>>| match result {
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
