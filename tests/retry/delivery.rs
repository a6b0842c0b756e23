//! Tests retries after errors that state whether the request was sent or processed.

use std::io::{self, ErrorKind::*};

use http_body_util::BodyExt;
use tower_outbound::{BoxError, test_util::ScriptedResponse};

use super::{
    support::{Scripted::*, request},
    *,
};

type MakeError = fn() -> BoxError;

/// Calls a service that returns `error` to the first attempt and a 200 to the second attempt. Returns the outcome of
/// each attempt and the call's stop reason.
async fn call(layer: &RetryLayer, method: &str, error: MakeError) -> (Vec<Outcome>, Option<StopReason>) {
    let inner = ScriptedService::new([ScriptedResponse::error(error), 200.into()]);
    let result = layer.layer(inner.clone()).oneshot(request(method, URI)).await;
    let report = match &result {
        Ok(response) => report(response).clone(),
        Err(error) => error.report().unwrap().clone(),
    };
    let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    assert_eq!(inner.calls(), outcomes.len());
    (outcomes, report.stop_reason())
}

fn not_sent() -> BoxError {
    DeliveryError::not_sent("no free connection").into()
}

fn circuit_open() -> DeliveryError {
    DeliveryError::circuit_open("too many failures")
}

#[tokio::test(start_paused = true)]
async fn post_is_retried_after_an_error_only_if_the_error_proves_that_it_was_not_sent() {
    let ok = Outcome::Response(StatusCode::OK);
    let cases: [(MakeError, Outcome); 7] = [
        (not_sent, Outcome::NotSent),
        (|| io::Error::from(ConnectionRefused).into(), Outcome::NotSent),
        // Without the `DeliveryError`, `ConnectionRefused` would prove that the request was not sent.
        (|| DeliveryError::maybe_processed(io::Error::from(ConnectionRefused)).into(), Outcome::Failed),
        (|| io::Error::other(not_sent()).into(), Outcome::Failed),
        // These errors can also occur on an established connection, after the request was sent.
        (|| io::Error::from(HostUnreachable).into(), Outcome::Failed),
        (|| io::Error::from(NetworkUnreachable).into(), Outcome::Failed),
        (|| io::Error::from(AddrNotAvailable).into(), Outcome::Failed),
    ];
    for (error, first) in cases {
        let retried = (vec![first, ok], Some(StopReason::Success));
        let stopped = (vec![first], Some(StopReason::NotIdempotent));
        let expected = if first == Outcome::NotSent { &retried } else { &stopped };
        for layer in [RetryLayer::new(), RetryLayer::new().retry_if(|_, attempt| attempt.error.is_some())] {
            assert_eq!(call(&layer, "POST", error).await, *expected, "{:?}", error());
            assert_eq!(call(&layer, "PUT", error).await, retried, "{:?}", error());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_method_is_retried_after_an_open_circuit() {
    let cases: [(MakeError, Outcome); 3] = [
        (|| circuit_open().into(), Outcome::NotSent),
        // A circuit breaker around the connector of a client, whose error proves that there was no connection.
        (|| DeliveryError::not_sent(circuit_open()).into(), Outcome::NotSent),
        (|| io::Error::other(circuit_open()).into(), Outcome::Failed),
    ];
    for (error, outcome) in cases {
        for layer in [RetryLayer::new(), RetryLayer::new().with_classify(Grpc::new())] {
            for method in ["GET", "POST"] {
                let stopped = (vec![outcome], Some(StopReason::NotRetryable));
                assert_eq!(call(&layer, method, error).await, stopped, "{method}");
            }
        }
        let inner = ScriptedService::new([ScriptedResponse::error(error)]);
        let error = RetryLayer::new().layer(inner).oneshot(get(URI)).await.unwrap_err();
        assert_eq!((error.kind(), error.kind().as_str()), (ErrorKind::CircuitOpen, "circuit_open"));
        assert!(error.to_string().starts_with("circuit breaker is open"), "{error}");
    }
}

#[test]
fn delivery_error_displays_its_delivery_and_returns_its_source() {
    let maybe_processed: BoxError = DeliveryError::maybe_processed(io::Error::from(ConnectionRefused)).into();
    assert_eq!(not_sent().to_string(), "the request was not sent");
    assert_eq!(maybe_processed.to_string(), "the request may have been processed");
    let source = maybe_processed.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(ConnectionRefused));
}

/// The body fails with an error that would prove a failed connection, although the server has read a part of it.
#[tokio::test(start_paused = true)]
async fn request_is_not_retried_if_its_body_fails_with_connection_refused() {
    for method in ["POST", "PUT"] {
        let service = service_fn(|request: Request<ReplayBody<_>>| async {
            let body: ReplayBody<StreamBody<_>> = request.into_body();
            let read = body.collect().await;
            read.map(|_| Response::new(Content::default()))
        });
        let refused: BoxError = io::Error::from(ConnectionRefused).into();
        let frames = stream::iter([Ok(Frame::data(Bytes::from("part"))), Err(refused)]);
        let request = Request::builder().method(method).uri(URI).body(StreamBody::new(frames)).unwrap();
        let error = RetryLayer::new().layer(service).oneshot(request).await.unwrap_err();
        let attempts = error.report().unwrap().attempts();
        assert_eq!((attempts.len(), attempts[0].outcome), (1, Some(Outcome::Failed)), "{method}");
    }
}

/// Calls two retry layers. Only the inner layer knows that the POST is idempotent. It makes two attempts for each
/// attempt of the outer layer.
#[tokio::test(start_paused = true)]
async fn outer_layer_retries_a_post_only_if_no_attempt_of_an_inner_layer_may_have_been_processed() {
    let by_key = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
    let cases: [(&[Scripted], usize); 7] = [
        (&[Status(429), Status(429), Status(200)], 3),
        (&[Refused, Status(429), Status(200)], 3),
        (&[Status(429), Refused, Status(200)], 3),
        // The inner layer returns the response or error of its second attempt. The server may have processed the first.
        (&[NoResponse, Status(429), Status(200)], 2),
        (&[Status(503), Status(429), Status(200)], 2),
        (&[NoResponse, Refused, Status(200)], 2),
        (&[Status(503), Refused, Status(200)], 2),
    ];
    for (responses, expected) in cases {
        for inner_retry in [RetryLayer::new().with_idempotent(|_| true), by_key.clone()] {
            let inner = ScriptedService::new(responses.iter().copied());
            let service = ServiceBuilder::new()
                .layer(RetryLayer::new())
                .layer(inner_retry.with_max_attempts(2).unwrap())
                .layer(AttemptTimeoutLayer::new(millis(90)).unwrap())
                .service(inner.clone());
            let _ = service.oneshot(request("POST", URI)).await;
            assert_eq!(inner.calls(), expected, "{responses:?}");
        }
    }
}

/// The limiter refuses the first attempt because the wait for a permit is too long. Only the error of this attempt
/// contains the wait.
#[tokio::test(start_paused = true)]
async fn wait_for_a_permit_appears_only_in_the_error_of_the_refused_attempt() {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&errors);
    let retry_every_error = move |_: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        attempt.error.is_some_and(|error| {
            recorded.lock().unwrap().push((error.is_rate_limited(), error.retry_after().is_some()));
            true
        })
    };
    let quota = Quota::new(4, secs(4)).and_then(|quota| quota.with_burst(1)).unwrap().without_margin();
    let bucket = LocalLimiter::token_bucket(quota);
    bucket.try_acquire().unwrap();
    let backoff = ExponentialBackoff::new(secs(5), secs(5)).unwrap().with_jitter(Jitter::none());
    let retry = RetryLayer::new().with_max_attempts(2).unwrap().with_backoff(backoff);
    let service = ServiceBuilder::new()
        .layer(retry.retry_if(retry_every_error))
        .layer(RateLimitLayer::new(bucket).with_max_wait(millis(1)))
        .service(ScriptedService::new([Refused]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(*errors.lock().unwrap(), [(true, true), (false, false)]);
    assert_eq!(error.retry_after(), None, "{error}");
}
