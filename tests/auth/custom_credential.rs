//! Tests of credentials that a closure adds to each request.

use std::{error::Error as _, sync::atomic::AtomicU32};

use http::request::Parts;
use support::{Broken, Scripted::Status, ScriptedService};
use tower::ServiceBuilder;
use tower_outbound::call::{Outcome, StopReason};

use super::*;

#[tokio::test]
async fn credential_closure_is_called_only_for_requests_to_the_allowed_origin() {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let sign = move |head: &mut Parts| -> Result<(), BoxError> {
        counter.fetch_add(1, Ordering::Relaxed);
        let signature = format!("{} {}", head.method, head.uri.path());
        head.headers.insert("x-signature", signature.try_into()?);
        Ok(())
    };
    let layer = closure_layer(sign);
    assert_eq!(forwarded_head(&layer, request("PUT", URI)).await.headers["x-signature"], "PUT /v1");
    assert!(forwarded_head(&layer, get("https://other.example.com/v1")).await.headers.is_empty());
    assert_eq!(calls.load(Ordering::Relaxed), 1, "the layer does not call the closure for another origin");
}

#[tokio::test(start_paused = true)]
async fn failing_credential_closure_ends_the_call_before_sending() {
    let fail = |_: &mut Parts| -> Result<(), BoxError> { Err(Broken.into()) };
    let layer = closure_layer(fail);
    let server = ScriptedService::new([Status(200)]);
    let error = layer.layer(server.clone()).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_auth() && !error.is_service() && !error.is_timeout());
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&Broken));

    // The retry layer does not retry a request whose credential closure failed, not even a GET.
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(layer).service(server.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_auth());
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(StopReason::NotRetryable)));
    assert_eq!(report.attempts()[0].outcome, Some(Outcome::NotSent));
    assert_eq!(server.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn credential_closure_is_called_for_every_attempt() {
    let count = AtomicU32::new(0);
    let rotate = move |head: &mut Parts| -> Result<(), BoxError> {
        let version = count.fetch_add(1, Ordering::Relaxed);
        head.headers.insert("x-key", version.into());
        Ok(())
    };
    let server = ScriptedService::new([Status(503), Status(503), Status(200)]);
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(closure_layer(rotate)).service(server.clone());
    service.oneshot(get(URI)).await.unwrap();
    let keys: Vec<_> = server.seen().iter().map(|seen| seen.head.headers["x-key"].clone()).collect();
    assert_eq!(keys, ["0", "1", "2"]);
}
