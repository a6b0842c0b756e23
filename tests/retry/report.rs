//! Tests the report and the error of a call.

use std::{
    error::Error as _,
    io::{self, ErrorKind::*},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    body::ReplayBody,
    call::{Outcome, StopReason::*},
    retry::RetryLayer,
    timeout::AttemptTimeoutLayer,
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, cause, get, millis, request, secs},
};

#[tokio::test(start_paused = true)]
async fn report_of_a_successful_call_contains_every_attempt() {
    let inner = ScriptedService::new([
        Headers(429, &[("retry-after", "2")]),
        Io(ConnectionReset),
        Refused,
        NoResponse,
        Delayed(30, 200),
    ]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(AttemptTimeoutLayer::new(secs(1)).unwrap())
        .service(inner.clone());
    let start = Instant::now();
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = report(&response);
    assert_eq!((report.stop_reason(), report.attempt_count()), (Some(Success), 5));
    assert_eq!((report.request_id(), report.waited()), (None, Duration::ZERO));
    let attempts = report.attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome.unwrap()).collect();
    let rejected = Outcome::Rejected(StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        outcomes,
        [rejected, Outcome::Failed, Outcome::NotSent, Outcome::Timeout, Outcome::Response(StatusCode::OK)]
    );
    let requested_delays: Vec<_> = attempts.iter().map(|attempt| attempt.requested_delay).collect();
    assert_eq!(requested_delays, [Some(secs(2)), None, None, None, None]);
    let durations: Vec<_> = attempts.iter().map(|attempt| attempt.ended.unwrap() - attempt.started).collect();
    assert_eq!(durations, [millis(0), millis(0), millis(0), secs(1), millis(30)]);
    for (index, (attempt, seen)) in attempts.iter().zip(inner.seen()).enumerate() {
        assert_eq!(attempt.number, index as u32 + 1);
        assert_eq!(attempt.started, seen.at - start);
        assert_eq!(attempt.delay.is_some(), index < 4);
        assert_eq!(attempt.waited, Duration::ZERO);
    }
    assert_eq!(attempts[4].ended, Some(start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn failed_call_returns_its_last_error_and_a_report_of_every_attempt() {
    let inner =
        ScriptedService::new([Headers(503, &[("retry-after", "2")]), Io(ConnectionReset), Io(BrokenPipe)]);
    let error = RetryLayer::new().layer(inner).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_timeout() && !error.is_auth());
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), BrokenPipe, "the call should return the error of the last attempt");
    let report = error.report().unwrap();
    assert_eq!((report.stop_reason(), report.attempt_count()), (Some(Exhausted), 3));
    let attempts = report.attempts();
    assert_eq!(attempts[0].requested_delay, Some(secs(2)));
    assert_eq!(attempts[1].outcome, Some(Outcome::Failed));
    assert_eq!(attempts[2].outcome, Some(Outcome::Failed));
    assert!(attempts[0].delay.is_some() && attempts[1].delay.is_some());
    assert_eq!(attempts[2].delay, None);
    assert!(attempts.iter().all(|attempt| attempt.ended >= Some(attempt.started)));
}

#[tokio::test(start_paused = true)]
async fn every_error_in_the_source_chain_can_be_downcast() {
    #[derive(Debug)]
    struct Outer(io::Error);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let service = service_fn(|_: Request<ReplayBody<Content>>| async {
        Err::<Response<Content>, _>(Outer(ConnectionRefused.into()))
    });
    // The retry layer does not know the type `Outer`, so the layer assumes that the request may have been sent.
    let error = RetryLayer::new().layer(service).oneshot(request("POST", URI)).await.unwrap_err();
    let outer = error.source().unwrap().downcast_ref::<Outer>().unwrap();
    assert_eq!(outer.0.kind(), ConnectionRefused);
    assert!(cause::<io::Error>(&error).is_some());
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(NotIdempotent)));
    assert_eq!(report.attempts()[0].outcome, Some(Outcome::Failed));
}

#[tokio::test(start_paused = true)]
async fn report_of_a_call_replaces_the_report_of_a_nested_call() {
    let service = tower::service_fn(|_: Request<ReplayBody<Content>>| async {
        let own_call = RetryLayer::new()
            .with_max_attempts(1)
            .unwrap()
            .layer(ScriptedService::new([Io(ConnectionReset)]));
        own_call.oneshot(get(URI)).await
    });
    let error = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 3);
}
