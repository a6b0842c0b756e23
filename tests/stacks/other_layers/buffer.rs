//! Tests tower's `Buffer` around, between and inside the layers of this crate.

use std::io;

use http::Request;
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    buffer::{BufferLayer, error::ServiceError},
    limit::ConcurrencyLimitLayer,
};
use tower_outbound::{
    Error,
    body::ReplayBody,
    call::{Outcome, StopReason},
    limit::RateLimitLayer,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::AttemptTimeoutLayer,
};

use super::{
    URI, bucket, fullest_window, methods, outcomes, rates,
    support::{Broken, Content, Scripted::*, ScriptedService, broken, cause, get, request, secs},
};

#[tokio::test(start_paused = true)]
async fn buffer_around_a_stack_returns_a_box_error_that_contains_the_crates_error() {
    let layer = rates().layer().unwrap();
    let service =
        BufferLayer::new(4).layer(layer.layer(ScriptedService::new([Io(io::ErrorKind::ConnectionReset)])));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    let error = error.downcast_ref::<Error>().unwrap();
    assert!(error.is_service() && error.report().is_some_and(|report| report.attempt_count() == 3));
}

#[tokio::test(start_paused = true)]
async fn outer_layers_recognize_an_error_of_a_layer_inside_a_buffer() {
    let limit = RateLimitLayer::new(bucket(2)).with_max_wait(secs(1));
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(BufferLayer::<Request<ReplayBody<Content>>>::new(4))
        .layer(limit)
        .service(ScriptedService::new([Status(200)]));
    service.clone().oneshot(request("POST", URI)).await.unwrap();
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after().is_some() && error.request_id().is_some());
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Refused]);
}

/// Requests that have permits wait in the buffer. They leave together when the service behind the buffer becomes ready.
#[tokio::test(start_paused = true)]
async fn requests_can_exceed_the_quota_if_a_buffer_is_inside_the_limiter() {
    for (below, expected) in [(true, 8), (false, 4)] {
        let slow = Delayed(60_000, 200);
        let client = ScriptedService::new([slow, slow, slow, slow, Status(200)]);
        let limit = RateLimitLayer::new(bucket(4));
        let inner = ConcurrencyLimitLayer::new(4).layer(client.clone());
        let mut calls = Vec::new();
        if below {
            let service = limit.layer(BufferLayer::new(16).layer(inner));
            calls.extend((0..12).map(|_| tokio::spawn(service.clone().oneshot(get(URI)))));
        } else {
            // With the buffer outside the limiter, no window exceeds the quota.
            let service = BufferLayer::new(16).layer(limit.layer(inner));
            calls.extend((0..12).map(|_| {
                let call = service.clone().oneshot(get(URI));
                tokio::spawn(async { call.await.map_err(|error| *error.downcast::<Error>().unwrap()) })
            }));
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(fullest_window(&client).max(4), expected, "buffer inside the limiter: {below}");
    }
}

/// The request is not retried, because the buffer still holds its body.
#[tokio::test(start_paused = true)]
async fn request_that_times_out_in_the_queue_of_a_buffer_is_never_sent() {
    let client = ScriptedService::new([Delayed(9_500, 200), Status(200)]);
    let inner = ConcurrencyLimitLayer::new(1).layer(client.clone());
    let first = tokio::spawn(inner.clone().oneshot(request("POST", URI)));
    tokio::task::yield_now().await;
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(AttemptTimeoutLayer::new(secs(1)).unwrap())
        .layer(BufferLayer::<Request<ReplayBody<Content>>>::new(4))
        .service(inner);
    let error = service.oneshot(request("PUT", URI)).await.unwrap_err();
    let report = error.report().unwrap();
    let expected = (vec![Outcome::Timeout], Some(StopReason::NotReplayable));
    assert_eq!((outcomes(report), report.stop_reason()), expected);
    first.await.unwrap().unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(methods(&client), ["POST"]);
}

#[tokio::test(start_paused = true)]
async fn buffer_fails_every_later_request_with_the_error_of_poll_ready() {
    let service = RetryLayer::new().layer(BufferLayer::new(4).layer(broken()));
    let error = service.oneshot(request("GET", URI)).await.unwrap_err();
    assert!(cause::<ServiceError>(&error).is_some() && cause::<Broken>(&error).is_some(), "{error:?}");
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Exhausted));
}
