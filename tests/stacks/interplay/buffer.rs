//! tower's `Buffer`.

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
    timeout::TimeoutLayer,
};

use super::{
    URI, bucket, methods, outcomes, rates,
    support::{Broken, Content, Scripted::*, ScriptedService, broken, cause, get, request, secs},
    worst_window,
};

#[tokio::test(start_paused = true)]
async fn above_the_error_is_in_the_box() {
    let layer = rates().layer().unwrap();
    let service =
        BufferLayer::new(4).layer(layer.layer(ScriptedService::new([Io(io::ErrorKind::ConnectionReset)])));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    let error = error.downcast_ref::<Error>().unwrap();
    assert!(error.is_service() && error.report().is_some_and(|report| report.attempt_count() == 3));
}

#[tokio::test(start_paused = true)]
async fn between_our_layers_the_error_comes_through() {
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

/// Why it is no place for it: what has its permit leaves when the buffer lets it go.
#[tokio::test(start_paused = true)]
async fn below_the_limiter_the_window_does_not_hold() {
    for (buffered, expected) in [(true, 8), (false, 4)] {
        let late = Delayed(60_000, 200);
        let probe = ScriptedService::new([late, late, late, late, Status(200)]);
        let limit = RateLimitLayer::new(bucket(4));
        let inner = ConcurrencyLimitLayer::new(4).layer(probe.clone());
        let mut calls = Vec::new();
        if buffered {
            let service = limit.layer(BufferLayer::new(16).layer(inner));
            calls.extend((0..12).map(|_| tokio::spawn(service.clone().oneshot(get(URI)))));
        } else {
            // The other way round is safe.
            let service = BufferLayer::new(16).layer(limit.layer(inner));
            calls.extend((0..12).map(|_| {
                let call = service.clone().oneshot(get(URI));
                tokio::spawn(async { call.await.map_err(|error| *error.downcast::<Error>().unwrap()) })
            }));
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(worst_window(&probe).max(4), expected, "buffered: {buffered}");
    }
}

/// What is given up in the queue is not sent, and not sent again either, for its body is still there.
#[tokio::test(start_paused = true)]
async fn below_a_timeout_what_is_queued_is_never_sent() {
    let probe = ScriptedService::new([Delayed(9_500, 200), Status(200)]);
    let inner = ConcurrencyLimitLayer::new(1).layer(probe.clone());
    let holder = tokio::spawn(inner.clone().oneshot(request("POST", URI)));
    tokio::task::yield_now().await;
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(TimeoutLayer::per_attempt(secs(1)).unwrap())
        .layer(BufferLayer::<Request<ReplayBody<Content>>>::new(4))
        .service(inner);
    let error = service.oneshot(request("PUT", URI)).await.unwrap_err();
    assert!(error.is_timeout());
    let report = error.report().unwrap();
    assert_eq!(
        (outcomes(report), report.stop_reason()),
        (vec![Outcome::Timeout], Some(StopReason::NotReplayable))
    );
    holder.await.unwrap().unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(methods(&probe), ["POST"]);
}

/// One failure to get ready ends a buffer for good.
#[tokio::test(start_paused = true)]
async fn below_a_service_that_breaks_stays_broken_and_says_why() {
    let service = RetryLayer::new().layer(BufferLayer::new(4).layer(broken()));
    let error = service.oneshot(request("GET", URI)).await.unwrap_err();
    assert!(cause::<ServiceError>(&error).is_some());
    assert_eq!(cause(&error), Some(&Broken));
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Exhausted));
}
