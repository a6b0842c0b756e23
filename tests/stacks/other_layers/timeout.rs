//! Tests tower's `Timeout` around, between and inside the layers of this crate.

use std::time::Duration;

use tokio::time::Instant;
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    timeout::{TimeoutLayer as TowerTimeoutLayer, error::Elapsed},
};
use tower_outbound::{
    Error,
    call::{Outcome, StopReason},
    limit::RateLimitLayer,
    retry::RetryLayer,
    timeout::TotalTimeoutLayer,
};

use super::{
    URI, bucket,
    capture::Capture,
    methods, outcomes, rates,
    support::{Scripted::*, ScriptedService, cause, get, request, secs},
};

#[tokio::test(start_paused = true)]
async fn tower_timeout_around_a_stack_drops_the_report() {
    let preset = rates().with_total_timeout(secs(20)).with_attempt_timeout(secs(2)).layer().unwrap();
    let client = ScriptedService::new([NoResponse]);
    let service = TowerTimeoutLayer::new(secs(3)).layer(preset.layer(client.clone()));
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    // The attempt timeout of 2 s elapses before tower's timeout of 3 s, so the error has a report.
    assert!(
        error.downcast_ref::<Error>().is_some_and(|error| error.is_timeout() && error.report().is_some())
    );

    let service = TowerTimeoutLayer::new(secs(1)).layer(preset.layer(client.clone()));
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is::<Elapsed>());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(methods(&client), ["POST", "POST"], "one request for each call");
}

#[tokio::test(start_paused = true)]
async fn tower_timeout_around_a_stack_suppresses_the_log_event_of_the_call() {
    for (inner_first, expected) in [(true, &["call failed"][..]), (false, &[])] {
        let (capture, _guard) = Capture::all();
        let preset = rates().with_total_timeout(secs(if inner_first { 1 } else { 20 })).layer().unwrap();
        let service = TowerTimeoutLayer::new(secs(3)).layer(preset.layer(ScriptedService::new([NoResponse])));
        assert!(service.oneshot(get(URI)).await.is_err());
        tokio::time::sleep(secs(60)).await;
        let events = capture.of("tower_outbound::call");
        let messages: Vec<_> = events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(messages, expected, "the stack's own timeout elapses first: {inner_first}");
    }
}

/// A call that cannot meet the deadline of this crate's timeout fails immediately. Under tower's timeout, such a call
/// waits until the timeout elapses.
#[tokio::test(start_paused = true)]
async fn call_that_cannot_meet_the_timeout_fails_immediately_except_under_towers_timeout() {
    for (deadline, expected) in [(true, Duration::ZERO), (false, secs(1))] {
        let limit = RateLimitLayer::new(bucket(2));
        let limited = limit.layer(ScriptedService::new([Status(200)]));
        limited.clone().oneshot(get(URI)).await.unwrap();
        let start = Instant::now();
        let error = if deadline {
            let layer = TotalTimeoutLayer::new(secs(1)).unwrap();
            let error = layer.layer(limited).oneshot(get(URI)).await.unwrap_err();
            assert!(error.is_rate_limited() && error.retry_after().is_some_and(|wait| wait > secs(1)));
            error.into()
        } else {
            TowerTimeoutLayer::new(secs(1)).layer(limited).oneshot(get(URI)).await.unwrap_err()
        };
        assert_eq!(error.is::<Elapsed>(), !deadline);
        assert_eq!(start.elapsed().as_secs(), expected.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_ended_by_an_inner_tower_timeout_counts_as_maybe_processed() {
    for (method, sent, stop_reason) in
        [("GET", 3, StopReason::Exhausted), ("POST", 1, StopReason::NotIdempotent)]
    {
        let client = ScriptedService::new([NoResponse]);
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new())
            .layer(TowerTimeoutLayer::new(secs(1)))
            .service(client.clone());
        let error = service.oneshot(request(method, URI)).await.unwrap_err();
        assert_eq!(client.calls(), sent);
        assert!(error.is_service() && !error.is_timeout() && cause::<Elapsed>(&error).is_some());
        let report = error.report().unwrap();
        assert_eq!(
            (outcomes(report), report.stop_reason()),
            (vec![Outcome::Failed; sent], Some(stop_reason))
        );
    }
}

/// tower's timeout around the limiter includes the wait for a permit. The retry layer cannot see that nothing was sent.
#[tokio::test(start_paused = true)]
async fn tower_timeout_between_retry_and_limit_hides_that_nothing_was_sent() {
    let client = ScriptedService::new([Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(TowerTimeoutLayer::new(secs(1)))
        .layer(RateLimitLayer::new(bucket(2)))
        .service(client.clone());
    service.clone().oneshot(request("POST", URI)).await.unwrap();
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(cause::<Elapsed>(&error).is_some());
    let report = error.report().unwrap();
    assert_eq!(
        (outcomes(report), report.stop_reason()),
        (vec![Outcome::Failed], Some(StopReason::NotIdempotent))
    );
    assert_eq!(client.calls(), 1);
}
