//! Tests custom classifiers, and the rules that `retry_if` adds.

use std::{
    io::ErrorKind::ConnectionReset,
    sync::{Arc, Mutex},
};

use http::{HeaderValue, Method};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Report,
    call::{CallContext, RequestHead, StopReason::*},
    request_id::RequestIdLayer,
    retry::{AttemptResult, RetryDecision, RetryLayer},
    timeout::AttemptTimeoutLayer,
};

use super::{
    URI, classifier, report,
    support::{Scripted::*, ScriptedService, get, request, secs},
};

#[tokio::test(start_paused = true)]
async fn custom_classifier_can_use_the_path_of_the_request() {
    let no_retry_of_once =
        classifier(|request, _| (request.uri.path() == "/v1/once").then_some(RetryDecision::NotRetryable));
    let layer = RetryLayer::new().with_classify(no_retry_of_once);
    for (path, attempts, stop_reason) in [("/v1/once", 1, NotRetryable), ("/v1", 3, Exhausted)] {
        let uri = format!("https://api.example.com{path}");
        let response = layer.layer(ScriptedService::new([Status(503)])).oneshot(get(&uri)).await.unwrap();
        assert_eq!(
            (report(&response).attempt_count(), report(&response).stop_reason()),
            (attempts, Some(stop_reason))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn custom_rule_receives_the_original_request_and_each_attempt_result() {
    #[derive(Clone, Debug, PartialEq)]
    struct CallerExtension;
    let results = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&results);
    let record = move |request: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        assert_eq!((request.method, request.uri.path()), (&Method::PUT, "/v1"));
        assert_eq!(request.headers["x-caller"], "1");
        assert_eq!(request.extensions.get(), Some(&CallerExtension));
        recorded.lock().unwrap().push(match (attempt.outcome.status(), attempt.headers, attempt.error) {
            (Some(status), Some(headers), None) => format!("{status} {}", headers.len()),
            (None, None, Some(error)) => format!("{error:#} {:?}", attempt.outcome.delivery()),
            _ => format!("{attempt:?}"),
        });
        false
    };
    let mut request = request("PUT", URI);
    request.headers_mut().insert("x-caller", HeaderValue::from_static("1"));
    request.extensions_mut().insert(CallerExtension);
    let inner = ScriptedService::new([
        Headers(503, &[("x-a", "1"), ("x-b", "2")]),
        Refused,
        Io(ConnectionReset),
        Status(404),
    ]);
    let layer = RetryLayer::new().with_max_attempts(9).unwrap().retry_if(record);
    layer.layer(inner).oneshot(request).await.unwrap();
    assert_eq!(
        *results.lock().unwrap(),
        [
            "503 Service Unavailable 2",
            "connection refused after 2 attempts: connection refused NotSent",
            "connection or stream reset by the server after 3 attempts: connection reset MaybeProcessed",
            "404 Not Found 0",
        ]
    );
}

/// The request's extensions contain a `CallContext` even if the caller adds no extension.
#[tokio::test(start_paused = true)]
async fn custom_rule_receives_the_call_context_of_every_attempt() {
    let without_deadline = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&without_deadline);
    let record = move |request: RequestHead<'_>, _: &AttemptResult<'_>| {
        let call = request.extensions.get::<CallContext>();
        recorded.lock().unwrap().push(call.is_some_and(|call| call.deadline().is_none()));
        false
    };
    let inner = ScriptedService::new([Status(503), Status(503), Status(200)]);
    RequestIdLayer::new()
        .layer(RetryLayer::new().retry_if(record).layer(inner))
        .oneshot(get(URI))
        .await
        .unwrap();
    assert_eq!(*without_deadline.lock().unwrap(), [true; 3]);
}

#[tokio::test(start_paused = true)]
async fn custom_rule_receives_a_report_with_every_error() {
    let attempt_counts = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&attempt_counts);
    let record = move |_: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        if let Some(error) = attempt.error {
            recorded.lock().unwrap().push(error.report().map_or(0, Report::attempt_count));
        }
        false
    };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().retry_if(record))
        .layer(AttemptTimeoutLayer::new(secs(1)).unwrap())
        .service(ScriptedService::new([NoResponse, Refused, Status(200)]));
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(*attempt_counts.lock().unwrap(), [1, 2]);
}
