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
