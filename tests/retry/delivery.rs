//! A custom service states whether its requests were sent, and the layer retries accordingly.

use std::io::{self, ErrorKind::*};

use tower::{Layer, ServiceExt};
use tower_outbound::{
    BoxError,
    call::{Outcome, StopReason},
    error::DeliveryError,
    retry::{IdempotencyKey, RetryLayer},
    test_util::ScriptedResponse,
};

use super::{
    URI,
    support::{ScriptedService, request},
};

/// Calls a service that returns this error once and then a 200. Returns the outcome of each attempt and the stop reason.
async fn attempts(
    layer: &RetryLayer,
    method: &str,
    error: fn() -> BoxError,
) -> (Vec<Outcome>, Option<StopReason>) {
    let probe = ScriptedService::new([ScriptedResponse::error(error), 200.into()]);
    let result = layer.layer(probe.clone()).oneshot(request(method, URI)).await;
    let report = match &result {
        Ok(response) => super::report(response).clone(),
        Err(error) => error.report().unwrap().clone(),
    };
    let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    assert_eq!(probe.calls(), outcomes.len());
    (outcomes, report.stop_reason())
}

fn not_sent() -> BoxError {
    DeliveryError::not_sent("no free connection").into()
}

fn maybe_processed() -> BoxError {
    // Its source would prove the opposite.
    DeliveryError::maybe_processed(io::Error::from(ConnectionRefused)).into()
}

fn not_sent_in_another_error() -> BoxError {
    io::Error::other(DeliveryError::not_sent("no free connection")).into()
}

const OK: Outcome = Outcome::Response(http::StatusCode::OK);

#[tokio::test(start_paused = true)]
async fn retries_post_after_not_sent_and_never_after_maybe_processed() {
    let layer = RetryLayer::new();
    for method in ["POST", "PATCH", "PURGE"] {
        let retried = (vec![Outcome::NotSent, OK], Some(StopReason::Success));
        assert_eq!(attempts(&layer, method, not_sent).await, retried, "{method}");
        let given_up = (vec![Outcome::Failed], Some(StopReason::NotIdempotent));
        assert_eq!(attempts(&layer, method, maybe_processed).await, given_up, "{method}");
        assert_eq!(attempts(&layer, method, not_sent_in_another_error).await, given_up, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_get_after_not_sent_and_after_maybe_processed() {
    let layer = RetryLayer::new();
    for method in ["GET", "PUT", "DELETE"] {
        for (error, first) in [
            (not_sent as fn() -> BoxError, Outcome::NotSent),
            (maybe_processed, Outcome::Failed),
            (not_sent_in_another_error, Outcome::Failed),
        ] {
            let retried = (vec![first, OK], Some(StopReason::Success));
            assert_eq!(attempts(&layer, method, error).await, retried, "{method} {first:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_classifier_retries_post_after_maybe_processed() {
    let layer = RetryLayer::new().retry_if(|_, _| true);
    let given_up = (vec![Outcome::Failed], Some(StopReason::NotIdempotent));
    assert_eq!(attempts(&layer, "POST", maybe_processed).await, given_up);
}

/// A custom service may fail with these kinds on an established connection.
#[tokio::test(start_paused = true)]
async fn does_not_retry_post_after_a_bare_io_error_other_than_connection_refused() {
    let layer = RetryLayer::new();
    let given_up = (vec![Outcome::Failed], Some(StopReason::NotIdempotent));
    for error in [
        || io::Error::from(HostUnreachable).into(),
        || io::Error::from(NetworkUnreachable).into(),
        (|| io::Error::from(AddrNotAvailable).into()) as fn() -> BoxError,
    ] {
        assert_eq!(attempts(&layer, "POST", error).await, given_up, "{}", error());
        let (outcomes, _) = attempts(&layer, "GET", error).await;
        assert_eq!(outcomes, [Outcome::Failed, OK], "{}", error());
    }
    let (outcomes, _) = attempts(&layer, "POST", || io::Error::from(ConnectionRefused).into()).await;
    assert_eq!(outcomes, [Outcome::NotSent, OK]);
}

/// The inner layer sends a POST twice, because its service honours the key. The outer layer knows no key, and would get
/// another one from the inner layer.
#[tokio::test(start_paused = true)]
async fn does_not_retry_post_that_an_inner_retry_layer_may_have_sent() {
    let key = IdempotencyKey::bare();
    let inner = RetryLayer::new().with_max_attempts(2).unwrap().with_honoured_idempotency_key(key);
    for (error, expected) in [(maybe_processed as fn() -> BoxError, 2), (not_sent, 3)] {
        let probe = ScriptedService::new([
            ScriptedResponse::error(error),
            ScriptedResponse::error(not_sent),
            200.into(),
        ]);
        let _ = RetryLayer::new().layer(inner.layer(probe.clone())).oneshot(request("POST", URI)).await;
        assert_eq!(probe.calls(), expected, "{}", error());
    }
}

#[test]
fn a_delivery_error_shows_its_statement_and_leads_to_the_error_it_wraps() {
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
