//! The report and the error.

use std::{
    error::Error as _,
    io::{self, ErrorKind::*},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Quota,
    body::ReplayBody,
    call::{Outcome, StopReason::*},
    limit::{RateLimitLayer, TokenBucket},
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

use super::{
    URI, report,
    support::{Broken, Content, Scripted::*, ScriptedService, broken, cause, get, millis, request, secs},
};

#[tokio::test(start_paused = true)]
async fn the_report_of_a_success_is_complete() {
    let probe = ScriptedService::new([
        Headers(429, &[("retry-after", "2")]),
        Io(ConnectionReset),
        Refused,
        NoResponse,
        Delayed(30, 200),
    ]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(TimeoutLayer::per_attempt(secs(1)).unwrap())
        .service(probe.clone());
    let start = Instant::now();
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = report(&response);
    assert_eq!((report.stop_reason(), report.attempt_count()), (Some(Success), 5));
    assert_eq!((report.request_id(), report.waited()), (None, Duration::ZERO));
    let attempts = report.attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome.unwrap()).collect();
    let answer = |status| Outcome::Response(StatusCode::from_u16(status).unwrap());
    assert_eq!(outcomes, [answer(429), Outcome::Failed, Outcome::NotSent, Outcome::Timeout, answer(200)]);
    let asked: Vec<_> = attempts.iter().map(|attempt| attempt.requested_delay).collect();
    assert_eq!(asked, [Some(secs(2)), None, None, None, None]);
    let took: Vec<_> = attempts.iter().map(|attempt| attempt.ended.unwrap() - attempt.started).collect();
    assert_eq!(took, [millis(0), millis(0), millis(0), secs(1), millis(30)]);
    for (index, (attempt, seen)) in attempts.iter().zip(probe.seen()).enumerate() {
        assert_eq!(attempt.number, index as u32 + 1);
        assert_eq!(attempt.started, seen.at - start);
        assert_eq!(attempt.delay.is_some(), index < 4);
        assert_eq!(attempt.waited, Duration::ZERO);
    }
    assert_eq!(attempts[4].ended, Some(start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn the_report_of_a_failure_is_complete_and_the_source_is_the_inner_error() {
    let probe =
        ScriptedService::new([Headers(503, &[("retry-after", "2")]), Io(ConnectionReset), Io(BrokenPipe)]);
    let error = RetryLayer::new().layer(probe).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_timeout() && !error.is_auth());
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), BrokenPipe, "the last attempt's error");
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
async fn the_chain_of_sources_downcasts_at_every_step() {
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
    // `Outer` is an unknown error, so its cause does not prove that the request was not sent.
    let error = RetryLayer::new().layer(service).oneshot(request("POST", URI)).await.unwrap_err();
    let outer = error.source().unwrap().downcast_ref::<Outer>().unwrap();
    assert_eq!(outer.0.kind(), ConnectionRefused);
    assert!(cause::<io::Error>(&error).is_some());
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(NotIdempotent)));
    assert_eq!(report.attempts()[0].outcome, Some(Outcome::Failed));
}

#[tokio::test(start_paused = true)]
async fn does_not_retry_after_a_refusal_of_the_limiter() {
    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap().without_margin());
    let probe = ScriptedService::new([Status(503)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(probe.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(50)), "{error:?}");
    let report = error.report().unwrap();
    assert_eq!((probe.calls(), report.stop_reason()), (1, Some(NotRetryable)));
    assert_eq!(report.attempts()[1].outcome, Some(Outcome::Refused));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_takes_a_permit_and_the_report_has_its_wait() {
    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap().without_margin());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket))
        .service(ScriptedService::new([Status(503), Status(200)]));
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempts = report(&response).attempts();
    assert_eq!(attempts[0].waited, Duration::ZERO);
    assert!((secs(59)..=secs(61)).contains(&attempts[1].waited), "{:?}", attempts[1].waited);
    assert_eq!(report(&response).waited(), attempts[1].waited);
}

#[tokio::test(start_paused = true)]
async fn retries_any_request_with_its_body_after_a_failed_poll_ready() {
    for method in ["PUT", "POST"] {
        let error = RetryLayer::new().layer(broken()).oneshot(request(method, URI)).await.unwrap_err();
        assert_eq!(cause(&error), Some(&Broken));
        let report = error.report().unwrap();
        assert_eq!((report.stop_reason(), report.attempt_count()), (Some(Exhausted), 3), "{method}");
        assert!(report.attempts().iter().all(|attempt| attempt.outcome == Some(Outcome::NotSent)));
    }
}

#[tokio::test(start_paused = true)]
async fn debug_shows_neither_head_nor_body() {
    let mut request = request("PUT", "https://api.example.com/v1?key=s3cret");
    request.headers_mut().insert("x-key", HeaderValue::from_static("s3cret"));
    *request.body_mut() = Full::from("s3cret");
    let mut service = RetryLayer::new().layer(ScriptedService::new([Status(503)]));
    let mut call = task::spawn(service.call(request));
    assert_pending!(call.poll());
    let shown = format!("{:?} {service:?} {:?}", call, RetryLayer::new());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("attempts: 1"), "{shown}");
}
