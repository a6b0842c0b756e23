//! tower's `Timeout`.

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
    timeout::TimeoutLayer,
};

use super::{
    URI, bucket,
    capture::Capture,
    methods, outcomes, rates,
    support::{Scripted::*, ScriptedService, cause, get, request, secs},
};

/// The call is dropped, and with it all that it knew.
#[tokio::test(start_paused = true)]
async fn above_it_ends_the_call_without_a_report() {
    let preset = rates().with_total_timeout(secs(20)).with_attempt_timeout(secs(2)).layer().unwrap();
    let probe = ScriptedService::new([NoResponse]);
    let service = TowerTimeoutLayer::new(secs(3)).layer(preset.layer(probe.clone()));
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    // Ours ran out first: it comes through whole.
    assert!(
        error.downcast_ref::<Error>().is_some_and(|error| error.is_timeout() && error.report().is_some())
    );

    let service = TowerTimeoutLayer::new(secs(1)).layer(preset.layer(probe.clone()));
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is::<Elapsed>());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(methods(&probe), ["POST", "POST"], "one for each call");
}

/// Who drops a call takes its line along; ours writes it.
#[tokio::test(start_paused = true)]
async fn above_it_drops_the_log_line_of_the_call() {
    for (ours, expected) in [(true, &["call failed"][..]), (false, &[])] {
        let (capture, _guard) = Capture::all();
        let preset = rates().with_total_timeout(secs(if ours { 1 } else { 20 })).layer().unwrap();
        let service = TowerTimeoutLayer::new(secs(3)).layer(preset.layer(ScriptedService::new([NoResponse])));
        assert!(service.oneshot(get(URI)).await.is_err());
        tokio::time::sleep(secs(60)).await;
        let lines = capture.of("tower_outbound::call");
        assert_eq!(lines.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), expected, "{ours}");
    }
}

/// What can't fit is refused at once by ours, and waited for in vain under tower's.
#[tokio::test(start_paused = true)]
async fn above_nobody_further_in_knows_of_it() {
    for (ours, expected) in [(true, Duration::ZERO), (false, secs(1))] {
        let limit = RateLimitLayer::new(bucket(2));
        let limited = limit.layer(ScriptedService::new([Status(200)]));
        limited.clone().oneshot(get(URI)).await.unwrap();
        let start = Instant::now();
        let error = if ours {
            let layer = TimeoutLayer::total(secs(1)).unwrap();
            let error = layer.layer(limited).oneshot(get(URI)).await.unwrap_err();
            assert!(error.is_rate_limited() && error.retry_after().is_some_and(|wait| wait > secs(1)));
            error.into()
        } else {
            TowerTimeoutLayer::new(secs(1)).layer(limited).oneshot(get(URI)).await.unwrap_err()
        };
        assert_eq!(error.is::<Elapsed>(), !ours);
        assert_eq!(start.elapsed().as_secs(), expected.as_secs());
    }
}

/// It proves nothing of the request.
#[tokio::test(start_paused = true)]
async fn below_it_is_a_failure_of_the_attempt_that_may_have_been_sent() {
    for (method, sent, ended) in [("GET", 3, StopReason::Exhausted), ("POST", 1, StopReason::NotIdempotent)] {
        let probe = ScriptedService::new([NoResponse]);
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new())
            .layer(TowerTimeoutLayer::new(secs(1)))
            .service(probe.clone());
        let error = service.oneshot(request(method, URI)).await.unwrap_err();
        assert_eq!(probe.calls(), sent);
        assert!(error.is_service() && !error.is_timeout() && cause::<Elapsed>(&error).is_some());
        let report = error.report().unwrap();
        assert_eq!((outcomes(report), report.stop_reason()), (vec![Outcome::Failed; sent], Some(ended)));
    }
}

/// Its time runs in the wait for the limiter, too, and nobody can tell that nothing was sent then.
#[tokio::test(start_paused = true)]
async fn between_retry_and_limit_it_hides_that_nothing_was_sent() {
    let probe = ScriptedService::new([Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(TowerTimeoutLayer::new(secs(1)))
        .layer(RateLimitLayer::new(bucket(2)))
        .service(probe.clone());
    service.clone().oneshot(request("POST", URI)).await.unwrap();
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(cause::<Elapsed>(&error).is_some());
    let report = error.report().unwrap();
    assert_eq!(
        (outcomes(report), report.stop_reason()),
        (vec![Outcome::Failed], Some(StopReason::NotIdempotent))
    );
    assert_eq!(probe.calls(), 1);
}
