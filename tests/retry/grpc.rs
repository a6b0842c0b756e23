//! Tests retries after responses of gRPC servers. `tests/stacks` runs the retry layer against a real gRPC server.

use tower_outbound::{
    call::StopReason::{self, *},
    retry::GrpcCode,
};

use super::{
    support::{Scripted::*, request},
    *,
};

const UNAVAILABLE: HeaderPairs = &[("grpc-status", "14")];
const RESOURCE_EXHAUSTED: HeaderPairs = &[("grpc-status", "8")];
const ABORTED: HeaderPairs = &[("grpc-status", "10")];
const PUSHBACK_5_S: HeaderPairs = &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "5000")];
const PUSHBACK_AND_RETRY_AFTER: HeaderPairs =
    &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "5000"), ("retry-after", "7")];
const NEGATIVE_PUSHBACK: HeaderPairs = &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")];
const PUSHBACK_TOO_LONG: HeaderPairs = &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "120001")];
/// The details contain a `google.rpc.RetryInfo` of 3 s.
const RETRY_INFO_3_S: HeaderPairs = &[
    ("grpc-status", "8"),
    (
        "grpc-status-details-bin",
        "CAgSBXF1b3RhGjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAM",
    ),
];
/// The details contain a `google.rpc.RetryInfo` of 37 s.
const UNAVAILABLE_RETRY_INFO_37_S: HeaderPairs = &[
    ("grpc-status", "14"),
    ("grpc-status-details-bin", "CA4aMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIJQ=="),
];
const EXHAUSTED_PUSHBACK_5_S: HeaderPairs = &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "5000")];
const ZERO_PUSHBACK: HeaderPairs = &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "0")];
const HEADERS_WITHOUT_STATUS: HeaderPairs =
    &[("content-type", "application/grpc"), ("grpc-retry-pushback-ms", "5000")];
const OK_WITH_PUSHBACK: HeaderPairs = &[("grpc-status", "0"), ("grpc-retry-pushback-ms", "5000")];

/// Returns a retry layer that declares every gRPC call of these tests idempotent.
fn idempotent_grpc() -> RetryLayer {
    RetryLayer::new().with_classify(Grpc::new()).with_idempotent(|head| head.uri.path() == "/v1")
}

/// Makes a call. Returns the stop reason, the number of attempts and the time from the first attempt to the second.
async fn call(
    layer: RetryLayer,
    method: &str,
    responses: [Scripted; 2],
) -> (Option<StopReason>, usize, Option<Duration>) {
    let inner = ScriptedService::new(responses);
    let result = layer.layer(inner.clone()).oneshot(request(method, URI)).await;
    let report = match &result {
        Ok(response) => Report::from_response(response),
        Err(error) => error.report(),
    };
    let seen = inner.seen();
    (report.unwrap().stop_reason(), seen.len(), seen.get(1).map(|second| second.at - seen[0].at))
}

#[tokio::test(start_paused = true)]
async fn grpc_status_and_pushback_determine_whether_a_call_is_retried() {
    /// The shortest and the longest expected delay in milliseconds, or `None` if no retry is expected.
    type Delay = Option<(u64, u64)>;
    let table: [(Scripted, StopReason, Delay); 16] = [
        // The gRPC status determines whether the call is retried, because a gateway may change the HTTP status.
        (Headers(503, PUSHBACK_5_S), Success, Some((5_000, 5_101))),
        (Headers(403, PUSHBACK_5_S), Success, Some((5_000, 5_101))),
        (Headers(200, UNAVAILABLE), Success, Some((50, 101))),
        (Headers(200, RESOURCE_EXHAUSTED), Success, Some((500, 1_001))),
        (Headers(200, PUSHBACK_5_S), Success, Some((5_000, 5_101))),
        // If a response requests two delays, the longer delay applies, plus the jitter of the throttled backoff.
        (Headers(200, PUSHBACK_AND_RETRY_AFTER), Success, Some((7_000, 8_001))),
        (Headers(200, RETRY_INFO_3_S), Success, Some((3_000, 4_001))),
        (Headers(200, UNAVAILABLE_RETRY_INFO_37_S), Success, Some((37_000, 37_101))),
        (Headers(200, ZERO_PUSHBACK), Success, Some((50, 101))),
        (Headers(200, NEGATIVE_PUSHBACK), NotRetryable, None),
        (Headers(200, PUSHBACK_TOO_LONG), RequestedDelayTooLong, None),
        (Headers(200, ABORTED), NotRetryable, None),
        (Headers(200, HEADERS_WITHOUT_STATUS), Success, None),
        (Headers(200, OK_WITH_PUSHBACK), Success, None),
        (Status(503), Success, Some((50, 101))),
        (Status(500), NotRetryable, None),
    ];
    for (response, expected_reason, expected_delay) in table {
        let (stop_reason, attempts, delay) = call(idempotent_grpc(), "POST", [response, Status(200)]).await;
        let expected_attempts = 1 + usize::from(expected_delay.is_some());
        assert_eq!((stop_reason, attempts), (Some(expected_reason), expected_attempts), "{response:?}");
        let within_bounds = delay
            .zip(expected_delay)
            .is_none_or(|(delay, (least, most))| (millis(least)..=millis(most)).contains(&delay));
        assert!(within_bounds, "{response:?}: {delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_grpc_call_may_have_been_processed_unless_the_server_rejected_it() {
    let not_idempotent = || RetryLayer::new().with_classify(Grpc::new());
    for response in [
        Headers(200, UNAVAILABLE),
        Headers(200, RESOURCE_EXHAUSTED),
        Headers(200, PUSHBACK_5_S),
        Headers(200, UNAVAILABLE_RETRY_INFO_37_S),
        Status(503),
        Io(ConnectionReset),
    ] {
        let result = call(not_idempotent(), "POST", [response, Status(200)]).await;
        assert_eq!(result, (Some(NotIdempotent), 1, None), "{response:?}");
        let (stop_reason, attempts, _) = call(idempotent_grpc(), "POST", [response, Status(200)]).await;
        assert_eq!((stop_reason, attempts), (Some(Success), 2), "{response:?}");
    }
    let (stop_reason, attempts, _) = call(not_idempotent(), "POST", [Refused, Status(200)]).await;
    assert_eq!((stop_reason, attempts), (Some(Success), 2));
    for (response, least) in [
        (Headers(200, EXHAUSTED_PUSHBACK_5_S), 5_000),
        (Headers(200, RETRY_INFO_3_S), 3_000),
        // A proxy has sent this response.
        (Status(429), 500),
    ] {
        let (stop_reason, attempts, delay) = call(not_idempotent(), "POST", [response, Status(200)]).await;
        assert_eq!((stop_reason, attempts), (Some(Success), 2), "{response:?}");
        assert!(delay >= Some(millis(least)), "{response:?}: {delay:?}");
        let only_idempotent = not_idempotent().with_retry_rejected(RetryRejected::Idempotent);
        let result = call(only_idempotent, "POST", [response, Status(200)]).await;
        assert_eq!(result, (Some(NotIdempotent), 1, None), "{response:?}");
    }
    // A negative pushback forbids the retry.
    let result = call(not_idempotent(), "POST", [Headers(200, NEGATIVE_PUSHBACK), Status(200)]).await;
    assert_eq!(result, (Some(NotRetryable), 1, None));
}

#[tokio::test(start_paused = true)]
async fn configured_grpc_codes_override_the_default_retry_decision() {
    let classify = Grpc::new().retry_on_code(GrpcCode::ABORTED).never_on_code(GrpcCode::UNAVAILABLE);
    for (response, expected) in [(Headers(200, ABORTED), Success), (Headers(200, UNAVAILABLE), NotRetryable)]
    {
        let layer = idempotent_grpc().with_classify(classify.clone());
        let (stop_reason, ..) = call(layer, "POST", [response, Status(200)]).await;
        assert_eq!(stop_reason, Some(expected), "{response:?}");
    }
    // A successful response is not retried even if `retry_on_code` contains `GrpcCode::OK`. The `never_on` rule is
    // evaluated before the gRPC classifier.
    let retries_ok = Grpc::new().retry_on_code(GrpcCode::OK);
    let layer = idempotent_grpc().with_classify(retries_ok);
    let (stop_reason, attempts, _) = call(layer, "POST", [Headers(200, OK_WITH_PUSHBACK), Status(200)]).await;
    assert_eq!((stop_reason, attempts), (Some(Success), 1));
    let never_on_200 = idempotent_grpc().with_classify(Grpc::new()).never_on([StatusCode::OK]);
    let (stop_reason, ..) = call(never_on_200, "POST", [Headers(200, UNAVAILABLE), Status(200)]).await;
    assert_eq!(stop_reason, Some(NotRetryable));
}

#[tokio::test(start_paused = true)]
async fn pushback_of_a_throttled_grpc_server_pauses_the_shared_limiter() {
    const ABORTED_WITH_PUSHBACK: HeaderPairs = &[("grpc-status", "10"), ("grpc-retry-pushback-ms", "5000")];
    for (response, pause) in [
        (Headers(200, PUSHBACK_5_S), 5_000),
        (Headers(200, PUSHBACK_AND_RETRY_AFTER), 7_000),
        (Headers(200, RETRY_INFO_3_S), 3_000),
        // The gRPC status determines whether the limiter pauses. The HTTP status has no effect.
        (Headers(503, PUSHBACK_5_S), 5_000),
        (Headers(403, PUSHBACK_5_S), 5_000),
        // A throttle without a delay.
        (Headers(200, NEGATIVE_PUSHBACK), 1_000),
        // The limiter does not pause after the following responses, because they delay only one call or no call.
        (Headers(200, ABORTED_WITH_PUSHBACK), 0),
        (Headers(200, HEADERS_WITHOUT_STATUS), 0),
        (Headers(200, OK_WITH_PUSHBACK), 0),
    ] {
        let inner = ScriptedService::new([response, Status(200)]);
        let service = ServiceBuilder::new()
            .layer(RateLimitLayer::new(LocalLimiter::without_quota()))
            .service(inner.clone());
        service.clone().oneshot(get(URI)).await.unwrap();
        let second_call = Instant::now();
        service.oneshot(get(URI)).await.unwrap();
        let waited = inner.seen()[1].at - second_call;
        assert!((millis(pause)..=millis(pause + 2)).contains(&waited), "{response:?}: {waited:?}");
    }
}
