//! Tests retries after errors that state whether the request was sent.

use std::{
    io::{self, ErrorKind::*},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Body, BoxError,
    body::ReplayBody,
    call::{Outcome, StopReason},
    error::DeliveryError,
    limit::{LocalLimiter, RateLimitLayer},
    retry::{IdempotencyKey, RetryLayer},
    test_util::ScriptedResponse,
};

use super::{
    URI,
    support::{Broken, Content, Scripted::Status, ScriptedService, request},
};

/// Calls a service that returns `error` to the first attempt and a 200 to the second attempt. Returns the outcome of
/// each attempt and the call's stop reason.
async fn call(
    layer: &RetryLayer,
    method: &str,
    error: fn() -> BoxError,
) -> (Vec<Outcome>, Option<StopReason>) {
    let inner = ScriptedService::new([ScriptedResponse::error(error), 200.into()]);
    let result = layer.layer(inner.clone()).oneshot(request(method, URI)).await;
    let report = match &result {
        Ok(response) => super::report(response).clone(),
        Err(error) => error.report().unwrap().clone(),
    };
    let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    assert_eq!(inner.calls(), outcomes.len());
    (outcomes, report.stop_reason())
}

fn not_sent() -> BoxError {
    DeliveryError::not_sent("no free connection").into()
}

fn maybe_processed() -> BoxError {
    // Without the `DeliveryError`, the retry layer would treat `ConnectionRefused` as proof that the request was not
    // sent.
    DeliveryError::maybe_processed(io::Error::from(ConnectionRefused)).into()
}

fn not_sent_in_another_error() -> BoxError {
    io::Error::other(DeliveryError::not_sent("no free connection")).into()
}

fn circuit_open() -> BoxError {
    DeliveryError::circuit_open("too many failures").into()
}

fn circuit_open_in_another_error() -> BoxError {
    io::Error::other(DeliveryError::circuit_open("too many failures")).into()
}

/// A circuit breaker around the connector of a client, whose error proves that there was no connection.
fn circuit_open_while_connecting() -> BoxError {
    DeliveryError::not_sent(DeliveryError::circuit_open("too many failures")).into()
}

const OK: Outcome = Outcome::Response(http::StatusCode::OK);

#[tokio::test(start_paused = true)]
async fn post_is_retried_after_a_delivery_error_only_if_the_post_was_not_sent() {
    let layer = RetryLayer::new();
    for method in ["POST", "PATCH", "PURGE"] {
        let retried = (vec![Outcome::NotSent, OK], Some(StopReason::Success));
        assert_eq!(call(&layer, method, not_sent).await, retried, "{method}");
        let stopped = (vec![Outcome::Failed], Some(StopReason::NotIdempotent));
        assert_eq!(call(&layer, method, maybe_processed).await, stopped, "{method}");
        assert_eq!(call(&layer, method, not_sent_in_another_error).await, stopped, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn get_is_retried_after_every_kind_of_delivery_error() {
    let layer = RetryLayer::new();
    for method in ["GET", "PUT", "DELETE"] {
        for (error, first) in [
            (not_sent as fn() -> BoxError, Outcome::NotSent),
            (maybe_processed, Outcome::Failed),
            (not_sent_in_another_error, Outcome::Failed),
        ] {
            let retried = (vec![first, OK], Some(StopReason::Success));
            assert_eq!(call(&layer, method, error).await, retried, "{method} {first:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_method_is_retried_after_an_open_circuit() {
    for layer in [RetryLayer::new(), RetryLayer::new().with_classify(tower_outbound::retry::Grpc::new())] {
        for method in ["GET", "POST"] {
            let stopped = (vec![Outcome::NotSent], Some(StopReason::NotRetryable));
            assert_eq!(call(&layer, method, circuit_open).await, stopped, "{method}");
            assert_eq!(call(&layer, method, circuit_open_while_connecting).await, stopped, "{method}");
            let stopped = (vec![Outcome::Failed], Some(StopReason::NotRetryable));
            assert_eq!(call(&layer, method, circuit_open_in_another_error).await, stopped, "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_an_open_circuit_has_its_own_kind() {
    for error in [circuit_open, circuit_open_in_another_error] {
        let inner = ScriptedService::new([ScriptedResponse::error(error)]);
        let error = RetryLayer::new().layer(inner).oneshot(request("GET", URI)).await.unwrap_err();
        assert_eq!(error.kind(), tower_outbound::ErrorKind::CircuitOpen);
        assert_eq!((error.kind().as_str(), &*error.to_string()), ("circuit_open", "circuit breaker is open"));
    }
}

#[tokio::test(start_paused = true)]
async fn custom_rule_cannot_retry_a_post_that_may_have_been_processed() {
    let layer = RetryLayer::new().retry_if(|_, _| true);
    let stopped = (vec![Outcome::Failed], Some(StopReason::NotIdempotent));
    assert_eq!(call(&layer, "POST", maybe_processed).await, stopped);
}

/// I/O errors other than `ConnectionRefused` can also occur on an established connection, after the request was sent.
#[tokio::test(start_paused = true)]
async fn post_is_retried_after_an_io_error_only_if_the_connection_was_refused() {
    let layer = RetryLayer::new();
    let stopped = (vec![Outcome::Failed], Some(StopReason::NotIdempotent));
    for error in [
        || io::Error::from(HostUnreachable).into(),
        || io::Error::from(NetworkUnreachable).into(),
        (|| io::Error::from(AddrNotAvailable).into()) as fn() -> BoxError,
    ] {
        assert_eq!(call(&layer, "POST", error).await, stopped, "{}", error());
        let (outcomes, _) = call(&layer, "GET", error).await;
        assert_eq!(outcomes, [Outcome::Failed, OK], "{}", error());
    }
    let (outcomes, _) = call(&layer, "POST", || io::Error::from(ConnectionRefused).into()).await;
    assert_eq!(outcomes, [Outcome::NotSent, OK]);
}

#[test]
fn delivery_error_displays_its_delivery_and_returns_its_source() {
    for (error, text) in
        [(not_sent(), "the request was not sent"), (maybe_processed(), "the request may have been processed")]
    {
        assert_eq!(error.to_string(), text);
        assert!(error.source().is_some());
    }
    let error = maybe_processed();
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(ConnectionRefused));
}

/// The inner retry layer may resend the POST, because the server honours the idempotency key of that layer. A retry of
/// the outer layer would send another key, so the server could process the POST twice.
#[tokio::test(start_paused = true)]
async fn outer_retry_layer_does_not_retry_post_that_inner_layer_may_have_sent() {
    let key = IdempotencyKey::bare();
    let inner_retry = RetryLayer::new().with_max_attempts(2).unwrap().with_honoured_idempotency_key(key);
    for (error, expected) in [(maybe_processed as fn() -> BoxError, 2), (not_sent, 3)] {
        let inner = ScriptedService::new([
            ScriptedResponse::error(error),
            ScriptedResponse::error(not_sent),
            200.into(),
        ]);
        let _ = RetryLayer::new().layer(inner_retry.layer(inner.clone())).oneshot(request("POST", URI)).await;
        assert_eq!(inner.calls(), expected, "{}", error());
    }
}

/// A service whose every second `poll_ready` fails. Requests are forwarded to the inner service.
#[derive(Clone)]
struct ReadyEveryOtherPoll {
    polls: Arc<AtomicUsize>,
    inner: ScriptedService,
}

impl Service<Request<ReplayBody<ReplayBody<Content>>>> for ReadyEveryOtherPoll {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.polls.fetch_add(1, Relaxed) % 2 {
            0 => Service::<Request<ReplayBody<Content>>>::poll_ready(&mut self.inner, cx),
            _ => Poll::Ready(Err(Broken.into())),
        }
    }

    fn call(&mut self, request: Request<ReplayBody<ReplayBody<Content>>>) -> Self::Future {
        let (head, _) = request.into_parts();
        self.inner.call(Request::from_parts(head, ReplayBody::new(Content::default())))
    }
}

#[tokio::test(start_paused = true)]
async fn outer_retry_layer_does_not_retry_post_that_inner_layer_has_sent() {
    let inner = ScriptedService::new([Status(503)]);
    let inner_retry = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(inner_retry.with_max_attempts(2).unwrap())
        .layer(RateLimitLayer::new(LocalLimiter::without_quota()))
        .service(ReadyEveryOtherPoll { polls: Arc::default(), inner: inner.clone() });
    service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(inner.calls(), 1, "the outer layer retried a POST without an idempotency key");
}
