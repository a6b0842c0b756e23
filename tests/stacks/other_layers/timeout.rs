//! Tests tower's `Timeout` around, between and inside the layers of this crate.

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
    URI, bucket, methods, outcomes, rates,
    support::{Scripted::*, ScriptedService, cause, request, secs},
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
async fn call_that_cannot_meet_the_timeout_waits_until_towers_timeout_elapses() {
    let service = RateLimitLayer::new(bucket(2)).layer(ScriptedService::new([Status(200)]));
    service.clone().oneshot(request("GET", URI)).await.unwrap();
    let start = Instant::now();
    let outbound = TotalTimeoutLayer::new(secs(1)).unwrap().layer(service.clone());
    let error = outbound.oneshot(request("GET", URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && start.elapsed().is_zero(), "{error:?}");
    let tower = TowerTimeoutLayer::new(secs(1)).layer(service);
    assert!(tower.oneshot(request("GET", URI)).await.unwrap_err().is::<Elapsed>());
    assert_eq!(start.elapsed().as_secs(), 1);
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
