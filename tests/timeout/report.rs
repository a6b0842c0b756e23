//! Tests the reports and request ids of calls that time out.

use super::*;

/// The inner service or the per-attempt timeout returns the error.
#[tokio::test(start_paused = true)]
async fn call_that_fails_before_its_deadline_reports_no_stop_reason() {
    for response in [Refused, NoResponse] {
        let service = ServiceBuilder::new()
            .layer(total(secs(9)))
            .layer(per_attempt(secs(1)))
            .service(ScriptedService::new([response]));
        let error = service.oneshot(get(URI)).await.unwrap_err();
        assert_eq!((error.is_service(), error.is_deadline()), (matches!(response, Refused), false));
        assert!(error.report().is_some_and(|report| report.stop_reason().is_none()), "{response:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn total_timeout_without_a_retry_layer_reports_no_attempts() {
    let service = total(secs(1)).layer(ScriptedService::new([Status(200)]));
    let response = service.oneshot(get(URI)).await.unwrap();
    assert!(response.extensions().get::<Report>().is_none_or(|report| report.attempt_count() == 0));
    let unresponsive = service_fn(|_: Request<Content>| pending::<Result<Response<Content>, Infallible>>());
    let error = total(secs(1)).layer(unresponsive).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 0);
}

/// Layers between the request id layer and the timeout layer can read the request id in the error.
#[tokio::test(start_paused = true)]
async fn attempt_timeout_error_contains_the_request_id() {
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_err(|error: Error| {
            assert!(error.request_id().is_some() && error.is_timeout());
            error
        })
        .layer(per_attempt(secs(1)))
        .service(ScriptedService::new([NoResponse]));
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_timeout());
}

/// The inner service makes a nested call. The error of the nested call already contains a report.
#[tokio::test(start_paused = true)]
async fn timeout_layer_keeps_the_report_in_the_error_of_a_nested_call() {
    let inner =
        RetryLayer::new().with_max_attempts(2).unwrap().layer(ScriptedService::new([Refused, Refused]));
    let nested = service_fn(move |_: Request<Content>| inner.clone().oneshot(get(URI)));
    let error = total(secs(9)).layer(nested).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 2);
}
