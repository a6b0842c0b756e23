//! Tests tower's `Buffer` around, between and inside the layers of this crate.

use std::io;

use http::Request;
use tower::{Layer, ServiceBuilder, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer};
use tower_outbound::{
    Error, body::ReplayBody, call::Outcome, limit::RateLimitLayer, request_id::RequestIdLayer,
    retry::RetryLayer,
};

use super::{
    URI, bucket, fullest_window, outcomes, rates,
    support::{Content, Scripted::*, ScriptedService, get, request, secs},
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
