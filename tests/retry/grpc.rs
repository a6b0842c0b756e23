//! Tests retries after responses of gRPC servers. `tests/stacks` runs the retry layer against a real gRPC server.

use RequestBody::Buffered;
use Setting::With;
use tower_outbound::{call::StopReason::*, retry::GrpcCode};

use super::{
    decision_table::{RequestBody, Row, Setting, THROTTLED_1, TRANSIENT_1, check, requested},
    support::Scripted::*,
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

const GRPC: Setting = With(|layer| layer.with_classify(Grpc::new()));
const RETRY_ABORTED: Setting =
    With(|layer| layer.with_classify(Grpc::new().retry_on_code(GrpcCode::ABORTED)));
const NEVER_UNAVAILABLE: Setting =
    With(|layer| layer.with_classify(Grpc::new().never_on_code(GrpcCode::UNAVAILABLE)));
const RETRY_OK: Setting = With(|layer| layer.with_classify(Grpc::new().retry_on_code(GrpcCode::OK)));
/// Declares every gRPC call of these tests idempotent.
const IDEMPOTENT: Setting = With(|layer| layer.with_idempotent(|head| head.uri.path() == "/v1"));

#[rustfmt::skip]
const TABLE: &[Row<'static>] = &[
    // The gRPC status determines whether the call is retried, because a gateway may change the HTTP status.
    ("POST", Buffered, &[Headers(503, PUSHBACK_5_S), Status(200)], &[GRPC, IDEMPOTENT], Success, &[requested(5_000..=5_100)]),
    ("POST", Buffered, &[Headers(403, PUSHBACK_5_S), Status(200)], &[GRPC, IDEMPOTENT], Success, &[requested(5_000..=5_100)]),
    ("POST", Buffered, &[Headers(200, UNAVAILABLE), Status(200)], &[GRPC, IDEMPOTENT], Success, &[TRANSIENT_1]),
    ("POST", Buffered, &[Headers(200, RESOURCE_EXHAUSTED), Status(200)], &[GRPC, IDEMPOTENT], Success, &[THROTTLED_1]),
    ("POST", Buffered, &[Headers(200, PUSHBACK_5_S), Status(200)], &[GRPC, IDEMPOTENT], Success, &[requested(5_000..=5_100)]),
    // If a response requests two delays, the longer delay applies, plus the jitter of the throttled backoff.
    ("POST", Buffered, &[Headers(200, PUSHBACK_AND_RETRY_AFTER), Status(200)], &[GRPC, IDEMPOTENT], Success, &[requested(7_000..=8_000)]),
    ("POST", Buffered, &[Headers(200, RETRY_INFO_3_S), Status(200)], &[GRPC, IDEMPOTENT], Success, &[requested(3_000..=4_000)]),
    ("POST", Buffered, &[Headers(200, UNAVAILABLE_RETRY_INFO_37_S), Status(200)], &[GRPC, IDEMPOTENT], Success, &[requested(37_000..=37_100)]),
    ("POST", Buffered, &[Headers(200, ZERO_PUSHBACK), Status(200)], &[GRPC, IDEMPOTENT], Success, &[TRANSIENT_1]),
    ("POST", Buffered, &[Headers(200, NEGATIVE_PUSHBACK)], &[GRPC, IDEMPOTENT], NotRetryable, &[]),
    ("POST", Buffered, &[Headers(200, PUSHBACK_TOO_LONG)], &[GRPC, IDEMPOTENT], RequestedDelayTooLong, &[]),
    ("POST", Buffered, &[Headers(200, ABORTED)], &[GRPC, IDEMPOTENT], NotRetryable, &[]),
    ("POST", Buffered, &[Headers(200, HEADERS_WITHOUT_STATUS)], &[GRPC, IDEMPOTENT], Success, &[]),
    ("POST", Buffered, &[Headers(200, OK_WITH_PUSHBACK)], &[GRPC, IDEMPOTENT], Success, &[]),
    ("POST", Buffered, &[Status(503), Status(200)], &[GRPC, IDEMPOTENT], Success, &[TRANSIENT_1]),
    ("POST", Buffered, &[Status(500)], &[GRPC, IDEMPOTENT], NotRetryable, &[]),
    ("POST", Buffered, &[Io(ConnectionReset), Status(200)], &[GRPC, IDEMPOTENT], Success, &[TRANSIENT_1]),
    // A failed call may have been processed, unless the server rejected it or it was not sent.
    ("POST", Buffered, &[Headers(200, UNAVAILABLE)], &[GRPC], NotIdempotent, &[]),
    ("POST", Buffered, &[Headers(200, RESOURCE_EXHAUSTED)], &[GRPC], NotIdempotent, &[]),
    ("POST", Buffered, &[Headers(200, PUSHBACK_5_S)], &[GRPC], NotIdempotent, &[]),
    ("POST", Buffered, &[Headers(200, UNAVAILABLE_RETRY_INFO_37_S)], &[GRPC], NotIdempotent, &[]),
    ("POST", Buffered, &[Status(503)], &[GRPC], NotIdempotent, &[]),
    ("POST", Buffered, &[Io(ConnectionReset)], &[GRPC], NotIdempotent, &[]),
    ("POST", Buffered, &[Headers(200, NEGATIVE_PUSHBACK)], &[GRPC], NotRetryable, &[]),
    ("POST", Buffered, &[Refused, Status(200)], &[GRPC], Success, &[TRANSIENT_1]),
    ("POST", Buffered, &[Headers(200, EXHAUSTED_PUSHBACK_5_S), Status(200)], &[GRPC], Success, &[requested(5_000..=6_000)]),
    ("POST", Buffered, &[Headers(200, RETRY_INFO_3_S), Status(200)], &[GRPC], Success, &[requested(3_000..=4_000)]),
    // A proxy has sent this response.
    ("POST", Buffered, &[Status(429), Status(200)], &[GRPC], Success, &[THROTTLED_1]),
    ("POST", Buffered, &[Headers(200, EXHAUSTED_PUSHBACK_5_S)], &[GRPC, Setting::RejectedIdempotent], NotIdempotent, &[]),
    ("POST", Buffered, &[Headers(200, RETRY_INFO_3_S)], &[GRPC, Setting::RejectedIdempotent], NotIdempotent, &[]),
    ("POST", Buffered, &[Status(429)], &[GRPC, Setting::RejectedIdempotent], NotIdempotent, &[]),
    // Codes of the classifier replace its default decision, and a `never_on` rule is evaluated before the classifier.
    ("POST", Buffered, &[Headers(200, ABORTED), Status(200)], &[RETRY_ABORTED, IDEMPOTENT], Success, &[TRANSIENT_1]),
    ("POST", Buffered, &[Headers(200, UNAVAILABLE)], &[NEVER_UNAVAILABLE, IDEMPOTENT], NotRetryable, &[]),
    ("POST", Buffered, &[Headers(200, UNAVAILABLE)], &[GRPC, IDEMPOTENT, Setting::NeverOn(200)], NotRetryable, &[]),
    // A successful response is not retried even if `retry_on_code` contains `GrpcCode::OK`.
    ("POST", Buffered, &[Headers(200, OK_WITH_PUSHBACK)], &[RETRY_OK, IDEMPOTENT], Success, &[]),
];

#[tokio::test(start_paused = true)]
async fn grpc_status_and_pushback_determine_whether_a_call_is_retried() {
    for row in TABLE {
        check(row, 0).await;
    }
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
