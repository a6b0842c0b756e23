//! Responses of gRPC servers, on paused time. tests/stacks runs a real server.

use std::{io::ErrorKind::ConnectionReset, time::Duration};

use http::{Method, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Report,
    call::{
        RequestHead,
        StopReason::{self, *},
    },
    limit::{RateLimitLayer, ResponseInfo, TokenBucket},
    retry::{Grpc, GrpcCode as Code, RetryLayer, RetryOverride},
};

use super::{
    Headers, URI,
    support::{Scripted, Scripted::*, ScriptedService, get, millis, request},
};

const UNAVAILABLE: Headers = &[("grpc-status", "14")];
const EXHAUSTED: Headers = &[("grpc-status", "8")];
const ABORTED: Headers = &[("grpc-status", "10")];
const PUSHED: Headers = &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "5000")];
const PUSHED_BOTH: Headers =
    &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "5000"), ("retry-after", "7")];
const PUSHED_AWAY: Headers = &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")];
const PUSHED_FAR: Headers = &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "120001")];
const PUSHED_NOW: Headers = &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "0")];
const BEGUN: Headers = &[("content-type", "application/grpc"), ("grpc-retry-pushback-ms", "5000")];
const OK: Headers = &[("grpc-status", "0"), ("grpc-retry-pushback-ms", "5000")];

fn grpc() -> RetryLayer {
    RetryLayer::new().with_classify(Grpc::new()).with_idempotent(|head| head.uri.path() == "/v1")
}

/// Returns the stop reason, the number of attempts, and the wait before the second of them.
async fn tried(
    layer: RetryLayer,
    method: &str,
    answers: [Scripted; 2],
) -> (Option<StopReason>, usize, Option<Duration>) {
    let probe = ScriptedService::new(answers);
    let result = layer.layer(probe.clone()).oneshot(request(method, URI)).await;
    let report = match &result {
        Ok(response) => Report::from_response(response),
        Err(error) => error.report(),
    };
    let seen = probe.seen();
    (report.unwrap().stop_reason(), seen.len(), seen.get(1).map(|second| second.at - seen[0].at))
}

#[tokio::test(start_paused = true)]
async fn retries_each_response_as_in_the_table() {
    /// The shortest and the longest wait in milliseconds.
    type Wait = Option<(u64, u64)>;
    let table: [(Scripted, StopReason, Wait); 14] = [
        // A gateway may change the HTTP status.
        (Headers(503, PUSHED), Success, Some((5_000, 5_101))),
        (Headers(403, PUSHED), Success, Some((5_000, 5_101))),
        (Headers(200, UNAVAILABLE), Success, Some((50, 101))),
        (Headers(200, EXHAUSTED), Success, Some((500, 1_001))),
        (Headers(200, PUSHED), Success, Some((5_000, 5_101))),
        // The longer of the two delays, plus the jitter of the throttled backoff.
        (Headers(200, PUSHED_BOTH), Success, Some((7_000, 8_001))),
        (Headers(200, PUSHED_NOW), Success, Some((50, 101))),
        (Headers(200, PUSHED_AWAY), NotRetryable, None),
        (Headers(200, PUSHED_FAR), RequestedDelayTooLong, None),
        (Headers(200, ABORTED), NotRetryable, None),
        (Headers(200, BEGUN), Success, None),
        (Headers(200, OK), Success, None),
        (Status(503), Success, Some((50, 101))),
        (Status(500), NotRetryable, None),
    ];
    for (answer, ended, waited) in table {
        let (told, attempts, wait) = tried(grpc(), "POST", [answer, Status(200)]).await;
        assert_eq!((told, attempts), (Some(ended), 1 + usize::from(waited.is_some())), "{answer:?}");
        let fits = wait
            .zip(waited)
            .is_none_or(|(wait, (least, most))| (millis(least)..=millis(most)).contains(&wait));
        assert!(fits, "{answer:?}: {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_code_proves_that_the_call_was_not_processed() {
    let strict = || RetryLayer::new().with_classify(Grpc::new());
    for answer in
        [Headers(200, UNAVAILABLE), Headers(200, EXHAUSTED), Headers(200, PUSHED), Io(ConnectionReset)]
    {
        let told = tried(strict(), "POST", [answer, Status(200)]).await;
        assert_eq!(told, (Some(NotIdempotent), 1, None), "{answer:?}");
        let (told, attempts, _) = tried(grpc(), "POST", [answer, Status(200)]).await;
        assert_eq!((told, attempts), (Some(Success), 2), "{answer:?}");
    }
    let (told, attempts, _) = tried(strict(), "POST", [Refused, Status(200)]).await;
    assert_eq!((told, attempts), (Some(Success), 2));
}

#[tokio::test(start_paused = true)]
async fn retries_only_the_configured_codes() {
    let classify = Grpc::new().retry_on_code(Code::ABORTED).never_on_code(Code::UNAVAILABLE);
    for (answer, ended) in [(Headers(200, ABORTED), Success), (Headers(200, UNAVAILABLE), NotRetryable)] {
        let told = tried(grpc().with_classify(classify.clone()), "POST", [answer, Status(200)]).await;
        assert_eq!(told.0, Some(ended), "{answer:?}");
    }
    // A success is never retried, and rules are evaluated before the classifier.
    let everything = Grpc::new().retry_on_code(Code::OK);
    let told = tried(grpc().with_classify(everything), "POST", [Headers(200, OK), Status(200)]).await;
    assert_eq!((told.0, told.1), (Some(Success), 1));
    let never = grpc().with_classify(Grpc::new()).never_on(StatusCode::OK);
    let told = tried(never, "POST", [Headers(200, UNAVAILABLE), Status(200)]).await;
    assert_eq!(told.0, Some(NotRetryable));
}

#[tokio::test(start_paused = true)]
async fn with_idempotent_declares_requests_by_a_rule() {
    let search = |head: RequestHead<'_>| head.uri.path() == "/v1/searches" && *head.method == Method::POST;
    let layer = RetryLayer::new().with_idempotent(search);
    for (method, path, attempts) in [
        ("POST", "/v1/searches", 3),
        ("PATCH", "/v1/searches", 1),
        ("POST", "/v1/orders", 1),
        ("GET", "/v1", 3),
    ] {
        let probe = ScriptedService::new([Status(503)]);
        let uri = format!("https://api.example.com{path}");
        layer.layer(probe.clone()).oneshot(request(method, &uri)).await.unwrap();
        assert_eq!(probe.calls(), attempts, "{method} {path}");
    }
    // The declaration of a single request still counts.
    let probe = ScriptedService::new([Status(503)]);
    let mut order = request("POST", URI);
    order.extensions_mut().insert(RetryOverride::new().with_idempotent());
    layer.layer(probe.clone()).oneshot(order).await.unwrap();
    assert_eq!(probe.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pushback_of_a_throttled_service_pauses_the_shared_limiter() {
    const ABORTED_PUSHED: Headers = &[("grpc-status", "10"), ("grpc-retry-pushback-ms", "5000")];
    for (answer, pause) in [
        (Headers(200, PUSHED), 5_000),
        (Headers(200, PUSHED_BOTH), 7_000),
        // With any HTTP status, because a gateway may change it.
        (Headers(503, PUSHED), 5_000),
        (Headers(403, PUSHED), 5_000),
        // A delay for one call, or none.
        (Headers(200, ABORTED_PUSHED), 0),
        (Headers(200, PUSHED_AWAY), 0),
        (Headers(200, BEGUN), 0),
        (Headers(200, OK), 0),
    ] {
        let probe = ScriptedService::new([answer, Status(200)]);
        let service =
            ServiceBuilder::new().layer(RateLimitLayer::new(TokenBucket::unlimited())).service(probe.clone());
        service.clone().oneshot(get(URI)).await.unwrap();
        let asked = Instant::now();
        service.oneshot(get(URI)).await.unwrap();
        let waited = probe.seen()[1].at - asked;
        assert!((millis(pause)..=millis(pause + 2)).contains(&waited), "{answer:?}: {waited:?}");
    }
}

#[test]
fn reads_no_pushback_from_a_response_that_is_not_grpc() {
    let mut headers = http::HeaderMap::new();
    headers.insert("grpc-retry-pushback-ms", http::HeaderValue::from_static("5000"));
    for status in [200, 429, 503] {
        let response = ResponseInfo::new(StatusCode::from_u16(status).unwrap(), &headers);
        assert!(response.requested_pause().is_none() && response.remaining().is_empty(), "{status}");
    }
}
