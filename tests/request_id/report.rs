//! Tests the request id in responses, errors and reports.

use super::*;

#[tokio::test(start_paused = true)]
async fn response_and_error_carry_a_report_with_the_request_id() {
    let server = ScriptedService::new([
        Headers(503, &[("request-id", "theirs-1")]),
        Headers(200, &[("request-id", "theirs-2")]),
    ]);
    let service =
        ServiceBuilder::new().layer(RequestIdLayer::new()).layer(RetryLayer::new()).service(server.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = report(&response);
    assert_eq!(report.request_id(), Some(id_of(&server.seen()[0].head)));
    assert_eq!(report.server_request_id().unwrap(), "theirs-2");
    assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(StopReason::Success)));

    for with_retry in [false, true] {
        let server = ScriptedService::new([Io(ConnectionReset)]);
        let layer = RequestIdLayer::new();
        let error = match with_retry {
            true => layer.layer(RetryLayer::new().layer(server.clone())).oneshot(get(URI)).await,
            false => layer.layer(server.clone()).oneshot(get(URI)).await,
        }
        .unwrap_err();
        assert!(error.is_service());
        assert_eq!(error.request_id(), Some(id_of(&server.seen()[0].head)));
        assert_eq!(error.report().unwrap().request_id(), error.request_id());
        assert_eq!(error.report().unwrap().attempt_count(), if with_retry { 3 } else { 0 });
    }
}

#[tokio::test]
async fn request_id_is_not_added_to_the_response_headers() {
    let response = RequestIdLayer::new().layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await;
    let response = response.unwrap();
    assert!(response.headers().is_empty() && report(&response).request_id().is_some());
}

#[tokio::test(start_paused = true)]
async fn timeout_error_and_limiter_refusal_carry_the_request_id() {
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(secs(1)).unwrap())
        .service(ScriptedService::new([NoResponse]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline() && error.request_id().is_some_and(|id| id.len() == 36));

    let bucket = LocalLimiter::token_bucket(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get(URI)).await.unwrap();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.request_id().is_some());
}

/// The two request id layers share one call context and one report. The inner layer therefore sets the values in the
/// call context and in the report.
#[tokio::test]
async fn inner_request_id_layer_overrides_service_name_and_id_of_outer_layer() {
    let outer = RequestIdLayer::new().with_service("outer").with_header(header("x-outer-id"));
    let inner = RequestIdLayer::new()
        .with_service("inner")
        .with_header(header("x-inner-id"))
        .with_server_headers([header("x-theirs")]);
    let server = ScriptedService::new([Headers(200, &[("x-request-id", "ignored"), ("x-theirs", "theirs")])]);
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(server.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let head = &server.seen()[0].head;
    assert_eq!(head.extensions.get::<CallContext>().unwrap().service().as_deref(), Some("inner"));
    let report = report(&response);
    assert_eq!(
        (report.service().as_deref(), report.request_id()),
        (Some("inner"), Some(head.headers["x-inner-id"].clone()))
    );
    assert_ne!(head.headers["x-inner-id"], head.headers["x-outer-id"]);
    assert_eq!(report.server_request_id().unwrap(), "theirs");
    let debug = format!("{report:?}");
    assert!(debug.contains(r#"service: Some("inner")"#), "{debug}");
}
