//! Tests the retry layer with a table of requests, responses, settings and expected results.

use std::io::ErrorKind::*;

use RequestBody::*;
use Setting::*;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use tower_outbound::call::StopReason::{Deadline, *};

use super::{
    support::Scripted::{self, *},
    *,
};

/// The reason for a delay, and the bounds of the delay in milliseconds.
pub(crate) type ExpectedDelay = (DelayReason, RangeInclusive<u64>);

/// The expected default backoff before the first, second, third and fourth retry, in milliseconds.
pub(crate) const TRANSIENT_1: ExpectedDelay = (DelayReason::Transient, 50..=100);
const TRANSIENT_2: ExpectedDelay = (DelayReason::Transient, 100..=200);
const TRANSIENT_3: ExpectedDelay = (DelayReason::Transient, 200..=400);
const TRANSIENT_4: ExpectedDelay = (DelayReason::Transient, 400..=800);

/// The expected default backoff after a throttled response, before the first and the second retry.
pub(crate) const THROTTLED_1: ExpectedDelay = (DelayReason::Throttled, 500..=1_000);
const THROTTLED_2: ExpectedDelay = (DelayReason::Throttled, 1_000..=2_000);

/// Expects a delay that the server requests, plus jitter. `bounds` are in milliseconds.
pub(crate) const fn requested(bounds: RangeInclusive<u64>) -> ExpectedDelay {
    (DelayReason::Requested, bounds)
}

/// Expects exactly this delay of a custom backoff, in milliseconds.
const fn custom(delay: u64) -> ExpectedDelay {
    (DelayReason::Transient, delay..=delay)
}

/// Expects exactly this delay of a custom backoff after a throttled response, in milliseconds.
const fn custom_throttled(delay: u64) -> ExpectedDelay {
    (DelayReason::Throttled, delay..=delay)
}

/// Headers with a `retry-after` date 10 s after the `date` header.
const AFTER_IMF_DATE: HeaderPairs =
    &[("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")];

const RETRY_TRUE: HeaderPairs = &[("x-should-retry", "true")];
const RETRY_FALSE: HeaderPairs = &[("x-should-retry", "false")];
const RETRY_TWICE: HeaderPairs = &[("x-should-retry", "true"), ("x-should-retry", "true")];
const RETRY_CONTRADICTORY: HeaderPairs = &[("x-should-retry", "true"), ("x-should-retry", "false")];
const STRIPE_TRUE: HeaderPairs = &[("stripe-should-retry", "true")];
const TRUE_AND_STRIPE_FALSE: HeaderPairs = &[("x-should-retry", "true"), ("stripe-should-retry", "false")];
const RETRY_INVALID: HeaderPairs = &[("x-should-retry", "perhaps")];

const NO_PERMITS: HeaderPairs = &[("x-ratelimit-remaining", "0")];
const NO_PERMIT_FOR_30_S: HeaderPairs = &[("ratelimit", "\"d\";r=0;t=30")];
const NO_PERMIT_FOR_300_S: HeaderPairs = &[("ratelimit", "\"d\";r=0;t=300")];
const PERMIT_FOR_300_S: HeaderPairs = &[("ratelimit", "\"d\";r=1;t=300")];

/// Classifies an attempt, or returns `None` to use the default classifier.
type Decide = fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision>;

struct Decider(Decide);

impl Classify for Decider {
    fn classify(&self, request: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision {
        self.0(request, attempt).unwrap_or_else(|| DefaultClassifier.classify(request, attempt))
    }
}

/// Classifies a 403 as throttled if no permits remain, because some services throttle with a 403.
const THROTTLED_403: Decide = |_, attempt| match (attempt.outcome.status(), attempt.headers) {
    (Some(StatusCode::FORBIDDEN), Some(headers)) => {
        let no_permits = headers.get("x-ratelimit-remaining").is_some_and(|remaining| remaining == "0");
        no_permits.then_some(RetryDecision::Throttled)
    }
    _ => None,
};
const ALWAYS_TRANSIENT: Decide = |_, _| Some(RetryDecision::Transient);
const NEVER_RETRYABLE: Decide = |_, _| Some(RetryDecision::NotRetryable);
const NOT_BELOW_V1: Decide =
    |request, _| request.uri.path().starts_with("/v1").then_some(RetryDecision::NotRetryable);
const ALWAYS_SUCCESS: Decide = |_, _| Some(RetryDecision::Success);

/// The kind of request body in a row of the decision table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RequestBody {
    Empty,
    /// The body is the text `hello` in one frame, with a known length.
    Buffered,
    /// The body is the text `hello` in two frames, without a known length.
    Streamed,
    /// The body is one byte longer than the default replay limit. The body has one frame and a known length.
    LargeBuffered,
    /// The body is one byte longer than the default replay limit. The body has several frames and no known length.
    LargeStreamed,
}

static LARGE: [u8; 1024 * 1024 + 1] = [b'x'; 1024 * 1024 + 1];

impl RequestBody {
    fn bytes(self) -> &'static [u8] {
        match self {
            Empty => b"",
            Buffered | Streamed => b"hello",
            LargeBuffered | LargeStreamed => &LARGE,
        }
    }

    fn stream(self) -> BoxBody<Bytes, Infallible> {
        let frame_length = match self {
            Empty | Buffered | LargeBuffered => return Full::new(Bytes::from_static(self.bytes())).boxed(),
            Streamed => 3,
            LargeStreamed => 64 * 1024,
        };
        let frames = self.bytes().chunks(frame_length).map(|data| Ok(Frame::data(Bytes::from_static(data))));
        StreamBody::new(stream::iter(frames)).boxed()
    }
}

/// A setting of the decision table that differs from the default.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting {
    MaxAttempts(u32),
    /// The longest requested delay that the retry layer accepts, in seconds.
    MaxRetryAfter(u64),
    /// The replay limit in bytes.
    ReplayLimit(usize),
    /// The timeout of the whole call, in milliseconds.
    TotalTimeout(u64),
    /// The timeout of each attempt, in milliseconds.
    AttemptTimeout(u64),
    /// The deadline in the request's extensions, in milliseconds from the start of the call.
    RequestDeadline(u64),
    RetryOn(u16),
    NeverOn(u16),
    Classifier(Decide),
    /// An override in the request's extensions disables retries.
    WithoutRetries,
    /// An override in the request's extensions sets the maximum number of attempts.
    RequestMaxAttempts(u32),
    /// An override in the request's extensions declares the request idempotent.
    DeclaredIdempotent,
    /// Only idempotent requests are retried after the server has rejected them.
    RejectedIdempotent,
    /// The server honours an idempotency key.
    HonouredKey,
    /// The caller sets an idempotency key.
    CallerKey,
    /// The delays of a custom backoff after transient failures, in milliseconds.
    TransientBackoff(&'static [u64]),
    /// The delays of a custom backoff after throttled responses, in milliseconds.
    ThrottledBackoff(&'static [u64]),
    BudgetCapacity(u32),
    /// Any other setting of the retry layer.
    With(fn(RetryLayer) -> RetryLayer),
}

/// A row of the decision table. The service repeats the last response of a row. The number of attempts is that of the
/// delays plus one, and the call returns the result of its last attempt.
pub(crate) type Row<'a> =
    (&'static str, RequestBody, &'a [Scripted], &'static [Setting], StopReason, &'static [ExpectedDelay]);

#[rustfmt::skip]
const TABLE: &[Row<'static>] = &[
    // Method, body, responses to the attempts, settings, stop reason, delays.
    // An error of the client is not retried.
    ("GET",  Empty,         &[Status(503), Status(404)],                         &[],                               NotRetryable,          &[TRANSIENT_1]),
    ("GET",  Empty,         &[RetryAfter(404, "1")],                             &[],                               NotRetryable,          &[]),
    // Every method is retried after a 429 or 529, because the server has rejected the request.
    ("POST", Buffered,      &[Status(429), Status(200)],                         &[],                               Success,               &[THROTTLED_1]),
    ("POST", Buffered,      &[Refused, Status(429), Status(201)],                &[],                               Success,               &[TRANSIENT_1, THROTTLED_2]),
    ("POST", Buffered,      &[Status(429)],                                      &[],                               Exhausted,             &[THROTTLED_1, THROTTLED_2]),
    ("POST", Buffered,      &[Status(429), Status(503)],                         &[],                               NotIdempotent,         &[THROTTLED_1]),
    // A setting restricts this to idempotent requests.
    ("POST", Buffered,      &[Status(429)],                                      &[RejectedIdempotent],             NotIdempotent,         &[]),
    ("POST", Buffered,      &[Status(429), Status(200)],                         &[RejectedIdempotent, HonouredKey],Success,               &[THROTTLED_1]),
    // A request whose method is not idempotent is not retried if the server may have processed it.
    ("POST", Buffered,      &[Status(503)],                                      &[],                               NotIdempotent,         &[]),
    ("POST", Buffered,      &[NoResponse],                                       &[AttemptTimeout(90)],             NotIdempotent,         &[]),
    ("POST", Buffered,      &[Io(ConnectionReset)],                              &[],                               NotIdempotent,         &[]),
    // A request that was not sent is retried with any method. A request that may have been sent is retried only if its
    // method is idempotent.
    ("PATCH",Buffered,      &[Refused, Refused, Status(200)],                    &[],                               Success,               &[TRANSIENT_1, TRANSIENT_2]),
    ("POST", Buffered,      &[Refused],                                          &[],                               Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("POST", Buffered,      &[Refused, Status(503)],                             &[],                               NotIdempotent,         &[TRANSIENT_1]),
    ("GET",  Empty,         &[Io(ConnectionReset), Status(200)],                 &[],                               Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[NoResponse, Status(200)],                          &[AttemptTimeout(90)],             Success,               &[TRANSIENT_1]),
    // The number of attempts is limited.
    ("GET",  Empty,         &[Status(503)],                                      &[],                               Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("GET",  Empty,         &[Status(503)],                                      &[MaxAttempts(1)],                 Exhausted,             &[]),
    ("GET",  Empty,         &[Status(503), Status(500), Status(502), Status(200)],&[MaxAttempts(4)],                 Success,               &[TRANSIENT_1, TRANSIENT_2, TRANSIENT_3]),
    ("GET",  Empty,         &[Status(429), Status(503), Status(200)],            &[],                               Success,               &[THROTTLED_1, TRANSIENT_2]),
    // The server requests a delay before the retry.
    ("GET",  Empty,         &[RetryAfter(503, "3"), Status(200)],                &[],                               Success,               &[requested(3_000..=3_050)]),
    ("GET",  Empty,         &[RetryAfter(429, "3"), Status(200)],                &[],                               Success,               &[requested(3_000..=3_500)]),
    ("GET",  Empty,         &[RetryAfter(503, "0"), Status(200)],                &[],                               Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Headers(503, AFTER_IMF_DATE), Status(200)],        &[],                               Success,               &[requested(10_000..=10_050)]),
    ("GET",  Empty,         &[RetryAfter(429, "120"), Status(200)],              &[],                               Success,               &[requested(120_000..=120_500)]),
    ("GET",  Empty,         &[Headers(429, NO_PERMIT_FOR_30_S), Status(200)],    &[],                               Success,               &[requested(30_000..=30_500)]),
    ("GET",  Empty,         &[Headers(429, PERMIT_FOR_300_S), Status(200)],      &[],                               Success,               &[THROTTLED_1]),
    ("GET",  Empty,         &[RetryAfter(503, "2"), RetryAfter(503, "4"), Status(200)],&[],                               Success,               &[requested(2_000..=2_050), requested(4_000..=4_100)]),
    // The call returns the response immediately if the requested delay is too long.
    ("GET",  Empty,         &[RetryAfter(429, "121")],                           &[],                               RequestedDelayTooLong, &[]),
    ("GET",  Empty,         &[Headers(429, NO_PERMIT_FOR_300_S)],                &[],                               RequestedDelayTooLong, &[]),
    ("GET",  Empty,         &[RetryAfter(503, "6")],                             &[MaxRetryAfter(5)],               RequestedDelayTooLong, &[]),
    ("GET",  Empty,         &[RetryAfter(503, "5"), Status(200)],                &[MaxRetryAfter(5)],               Success,               &[requested(5_000..=5_050)]),
    // The call returns the response immediately if the delay before a retry would end after the deadline.
    ("GET",  Empty,         &[RetryAfter(503, "3")],                             &[TotalTimeout(3_000)],            Deadline,              &[]),
    ("GET",  Empty,         &[RetryAfter(503, "3"), Status(200)],                &[TotalTimeout(3_100)],            Success,               &[requested(3_000..=3_050)]),
    ("GET",  Empty,         &[Status(503)],                                      &[TotalTimeout(50)],               Deadline,              &[]),
    ("GET",  Empty,         &[NoResponse],                                       &[TotalTimeout(80)],               Deadline,              &[]),
    // A body longer than the replay limit is not replayed. The body `Buffered` has 5 bytes.
    ("PUT",  Buffered,      &[Status(503), Status(200)],                         &[ReplayLimit(5)],                 Success,               &[TRANSIENT_1]),
    ("PUT",  Buffered,      &[Status(503)],                                      &[ReplayLimit(4)],                 NotReplayable,         &[]),
    // The replay limit does not apply to a body that the service did not read.
    ("POST", Buffered,      &[Refused, Status(200)],                             &[ReplayLimit(0)],                 Success,               &[TRANSIENT_1]),
    // The service reads each kind of request body completely, partly or not at all, or keeps the body.
    ("PUT",  Streamed,      &[Status(503), Status(200)],                         &[ReplayLimit(5)],                 Success,               &[TRANSIENT_1]),
    ("PUT",  Streamed,      &[Status(503)],                                      &[ReplayLimit(4)],                 NotReplayable,         &[]),
    ("PUT",  Empty,         &[Status(503), Status(200)],                         &[ReplayLimit(0)],                 Success,               &[TRANSIENT_1]),
    ("PUT",  LargeBuffered, &[Status(503)],                                      &[],                               NotReplayable,         &[]),
    ("PUT",  LargeBuffered, &[Status(503), Status(200)],                         &[ReplayLimit(2_097_152)],         Success,               &[TRANSIENT_1]),
    ("POST", LargeBuffered, &[Refused, Status(200)],                             &[],                               Success,               &[TRANSIENT_1]),
    ("PUT",  Streamed,      &[AfterFirstFrame(503)],                             &[],                               NotReplayable,         &[]),
    ("PUT",  Buffered,      &[AfterFirstFrame(503), Status(200)],                &[],                               Success,               &[TRANSIENT_1]),
    ("PUT",  Streamed,      &[BeforeBody(503), Status(200)],                     &[],                               Success,               &[TRANSIENT_1]),
    ("PUT",  LargeStreamed, &[BeforeBody(503), BeforeBody(503), Status(200)],    &[],                               Success,               &[TRANSIENT_1, TRANSIENT_2]),
    ("PUT",  Buffered,      &[KeepsBody(503)],                                   &[],                               NotReplayable,         &[]),
    ("PUT",  Streamed,      &[KeepsBody(503)],                                   &[],                               NotReplayable,         &[]),
    ("GET",  Empty,         &[KeepsBody(503), Status(200)],                      &[],                               Success,               &[TRANSIENT_1]),
    // Among custom retry rules, the rule that was added last is evaluated first.
    ("GET",  Empty,         &[Status(409), Status(200)],                         &[RetryOn(409)],                   Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Status(202), Status(200)],                         &[RetryOn(202)],                   Success,               &[TRANSIENT_1]),
    ("POST", Buffered,      &[Status(409)],                                      &[RetryOn(409)],                   NotIdempotent,         &[]),
    ("GET",  Empty,         &[Status(409)],                                      &[RetryOn(409), NeverOn(409)],     NotRetryable,          &[]),
    ("GET",  Empty,         &[Status(409), Status(200)],                         &[NeverOn(409), RetryOn(409)],     Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Headers(403, NO_PERMITS), Status(200)],            &[Classifier(THROTTLED_403)],      Success,               &[THROTTLED_1]),
    ("GET",  Empty,         &[Status(403)],                                      &[Classifier(THROTTLED_403)],      NotRetryable,          &[]),
    ("GET",  Empty,         &[Status(404)],                                      &[Classifier(ALWAYS_TRANSIENT)],   Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("POST", Buffered,      &[Status(200)],                                      &[Classifier(ALWAYS_TRANSIENT)],   NotIdempotent,         &[]),
    ("GET",  Empty,         &[Status(503)],                                      &[Classifier(NEVER_RETRYABLE)],    NotRetryable,          &[]),
    ("GET",  Empty,         &[Status(503)],                                      &[Classifier(NOT_BELOW_V1)],       NotRetryable,          &[]),
    ("GET",  Empty,         &[Status(503)],                                      &[Classifier(ALWAYS_SUCCESS)],     Success,               &[]),
    // A response with status 101 ends the call, whatever a custom rule decides.
    ("GET",  Empty,         &[Status(503), Status(101)],                         &[Classifier(ALWAYS_TRANSIENT)],   Success,               &[TRANSIENT_1]),
    // The header `x-should-retry` has an effect only in a response with a status of 400 to 599.
    ("GET",  Empty,         &[Headers(400, RETRY_TRUE), Status(200)],            &[],                               Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Headers(429, RETRY_TRUE), Status(200)],            &[],                               Success,               &[THROTTLED_1]),
    ("GET",  Empty,         &[Headers(503, RETRY_FALSE)],                        &[],                               NotRetryable,          &[]),
    ("GET",  Empty,         &[Headers(429, RETRY_FALSE)],                        &[],                               NotRetryable,          &[]),
    ("GET",  Empty,         &[Headers(200, RETRY_TRUE)],                         &[],                               Success,               &[]),
    ("GET",  Empty,         &[Headers(400, RETRY_TWICE), Status(200)],           &[],                               Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Headers(400, RETRY_CONTRADICTORY)],                &[],                               NotRetryable,          &[]),
    ("GET",  Empty,         &[Headers(503, RETRY_CONTRADICTORY), Status(200)],   &[],                               Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Headers(400, STRIPE_TRUE), Status(200)],           &[],                               Success,               &[TRANSIENT_1]),
    ("GET",  Empty,         &[Headers(400, TRUE_AND_STRIPE_FALSE)],              &[],                               NotRetryable,          &[]),
    ("GET",  Empty,         &[Headers(400, RETRY_INVALID)],                      &[],                               NotRetryable,          &[]),
    ("POST", Buffered,      &[Headers(503, RETRY_TRUE)],                         &[],                               NotIdempotent,         &[]),
    ("GET",  Empty,         &[Headers(503, RETRY_TRUE)],                         &[NeverOn(503)],                   NotRetryable,          &[]),
    ("GET",  Empty,         &[Headers(409, RETRY_FALSE), Status(200)],           &[RetryOn(409)],                   Success,               &[TRANSIENT_1]),
    // Overrides in the request's extensions replace the settings of the retry layer.
    ("GET",  Empty,         &[Io(ConnectionReset), Refused],                     &[MaxAttempts(2)],                 Exhausted,             &[TRANSIENT_1]),
    ("GET",  Empty,         &[Status(503)],                                      &[WithoutRetries],                 Exhausted,             &[]),
    ("GET",  Empty,         &[Status(503)],                                      &[RequestMaxAttempts(5)],          Exhausted,             &[TRANSIENT_1, TRANSIENT_2, TRANSIENT_3, TRANSIENT_4]),
    ("GET",  Empty,         &[Status(503)],                                      &[RequestMaxAttempts(2), MaxAttempts(5)],Exhausted,             &[TRANSIENT_1]),
    ("POST", Buffered,      &[Status(503), Status(200)],                         &[DeclaredIdempotent],             Success,               &[TRANSIENT_1]),
    // A request with any method is retried if the server honours idempotency keys. A key of the caller has no effect.
    ("POST", Buffered,      &[Status(503), Status(200)],                         &[HonouredKey],                    Success,               &[TRANSIENT_1]),
    ("POST", Buffered,      &[Status(503)],                                      &[CallerKey],                      NotIdempotent,         &[]),
    ("POST", Buffered,      &[Status(409)],                                      &[HonouredKey],                    NotRetryable,          &[]),
    // The request's extensions contain a deadline. The earlier of two deadlines applies.
    ("GET",  Empty,         &[RetryAfter(503, "3")],                             &[RequestDeadline(3_000)],         Deadline,              &[]),
    ("GET",  Empty,         &[Delayed(60, 503)],                                 &[RequestDeadline(100)],           Deadline,              &[]),
    ("GET",  Empty,         &[NoResponse],                                       &[RequestDeadline(50)],            Deadline,              &[]),
    ("GET",  Empty,         &[RetryAfter(503, "3")],                             &[RequestDeadline(3_000), TotalTimeout(9_000)],Deadline,              &[]),
    ("GET",  Empty,         &[RetryAfter(503, "3")],                             &[RequestDeadline(9_000), TotalTimeout(3_000)],Deadline,              &[]),
    // A custom backoff with a limited number of delays allows one retry for each delay.
    ("GET",  Empty,         &[Status(503)],                                      &[TransientBackoff(&[1_000, 2_000]), MaxAttempts(9)],Exhausted,             &[custom(1_000), custom(2_000)]),
    ("GET",  Empty,         &[Status(503)],                                      &[TransientBackoff(&[1_000, 2_000, 3_000])],Exhausted,             &[custom(1_000), custom(2_000)]),
    ("GET",  Empty,         &[Status(503)],                                      &[TransientBackoff(&[])],          Exhausted,             &[]),
    ("GET",  Empty,         &[RetryAfter(503, "3"), Status(200)],                &[TransientBackoff(&[1_000])],     Success,               &[requested(3_000..=3_500)]),
    ("GET",  Empty,         &[RetryAfter(503, "1"), Status(200)],                &[TransientBackoff(&[2_000])],     Success,               &[custom(2_000)]),
    ("GET",  Empty,         &[Status(503)],                                      &[TransientBackoff(&[u64::MAX]), TotalTimeout(3_000)],Deadline,              &[]),
    ("GET",  Empty,         &[Status(429)],                                      &[TransientBackoff(&[1])],         Exhausted,             &[THROTTLED_1, THROTTLED_2]),
    ("GET",  Empty,         &[Status(429), Status(503), Status(429), Status(503), Status(200)],&[TransientBackoff(&[1, 2]), ThrottledBackoff(&[3, 4]), MaxAttempts(5)],Success,               &[custom_throttled(3), custom(1), custom_throttled(4), custom(2)]),
    // The budget limits the retries. A retry costs 14 credits, or 5 credits after a throttled response.
    ("GET",  Empty,         &[Status(503)],                                      &[BudgetCapacity(14)],             Budget,                &[TRANSIENT_1]),
    ("GET",  Empty,         &[Status(503)],                                      &[BudgetCapacity(28)],             Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("GET",  Empty,         &[Status(429)],                                      &[BudgetCapacity(14), MaxAttempts(4)],Budget,                &[THROTTLED_1, THROTTLED_2]),
];

/// Makes the call that `row` describes. Asserts the call's result, attempts, delays and request bodies. `seed`
/// determines the jitter of the backoff.
pub(crate) async fn check(row: &Row<'_>, seed: u64) {
    let &(method, body, responses, settings, stop_reason, delays) = row;
    let start = Instant::now();
    let (mut retry, mut total_timeout, mut attempt_timeout) =
        (RetryLayer::new().with_seed(seed), Duration::MAX, Duration::MAX);
    let (mut overrides, mut budget) = (RetryOverride::new(), tower_outbound::retry::Budget::new());
    let mut request = Request::builder().method(method).uri(URI).body(body.stream()).unwrap();
    let status = |code| StatusCode::from_u16(code).unwrap();
    for setting in settings {
        match *setting {
            MaxAttempts(max) => retry = retry.with_max_attempts(max).unwrap(),
            MaxRetryAfter(max) => retry = retry.with_max_retry_after(secs(max)),
            ReplayLimit(limit) => retry = retry.with_replay_limit(limit),
            TotalTimeout(limit) => total_timeout = millis(limit),
            AttemptTimeout(limit) => attempt_timeout = millis(limit),
            RequestDeadline(after) => {
                request.extensions_mut().insert(tower_outbound::call::Deadline(start + millis(after)));
            }
            RetryOn(code) => retry = retry.retry_on([status(code)]),
            NeverOn(code) => retry = retry.never_on([status(code)]),
            Classifier(decide) => retry = retry.with_classify(Decider(decide)),
            WithoutRetries => overrides = overrides.without_retries(),
            RequestMaxAttempts(max) => overrides = overrides.with_max_attempts(max).unwrap(),
            DeclaredIdempotent => overrides = overrides.with_idempotent(),
            RejectedIdempotent => retry = retry.with_retry_rejected(RetryRejected::Idempotent),
            HonouredKey => retry = retry.with_honoured_idempotency_key(IdempotencyKey::bare()),
            CallerKey => {
                request.headers_mut().insert("idempotency-key", HeaderValue::from_static("caller-key"));
            }
            TransientBackoff(steps) => {
                retry = retry.with_custom_backoff(|| steps.iter().copied().map(millis));
            }
            ThrottledBackoff(steps) => {
                retry = retry.with_custom_throttled_backoff(|| steps.iter().copied().map(millis));
            }
            BudgetCapacity(capacity) => budget = budget.with_capacity(capacity).unwrap(),
            With(change) => retry = change(retry),
        }
    }
    let (retry, full) = (retry.with_budget(budget.clone()), budget.left());
    request.extensions_mut().insert(overrides);
    let inner = ScriptedService::new(responses.iter().copied());
    let service = ServiceBuilder::new()
        .option_layer((total_timeout < Duration::MAX).then(|| TotalTimeoutLayer::new(total_timeout).unwrap()))
        .layer(retry)
        .layer(AttemptTimeoutLayer::new(attempt_timeout).unwrap())
        .service(inner.clone());
    let result = service.oneshot(request).await;
    let elapsed = start.elapsed();

    let (actual, report) = match &result {
        Ok(response) => (Ok(response.status().as_u16()), report(response)),
        Err(error) => (Err(error.kind()), error.report().unwrap()),
    };
    let expected = match responses[delays.len().min(responses.len() - 1)] {
        Refused => Err(ErrorKind::ConnectRefused),
        Io(_) => Err(ErrorKind::Reset),
        NoResponse if stop_reason == Deadline => Err(ErrorKind::Deadline),
        NoResponse => Err(ErrorKind::AttemptTimeout),
        Status(status) | BeforeBody(status) | AfterFirstFrame(status) | KeepsBody(status) => Ok(status),
        Headers(status, _) | RetryAfter(status, _) | Delayed(_, status) => Ok(status),
    };
    assert_eq!((actual, report.stop_reason()), (expected, Some(stop_reason)), "{row:?}");
    let attempts = report.attempts();
    assert_eq!((inner.calls(), attempts.len()), (delays.len() + 1, delays.len() + 1), "{row:?}");
    assert!(attempts.iter().map(|attempt| attempt.number).eq(1..=attempts.len() as u32), "{row:?}");
    assert_eq!(
        attempts.last().unwrap().delay,
        None,
        "the report has a delay after the last attempt: {row:?}"
    );
    for (pair, (reason, bounds)) in attempts.windows(2).zip(delays) {
        let (delay, bounds) = (pair[0].delay.unwrap(), millis(*bounds.start())..=millis(*bounds.end()));
        assert_eq!(pair[0].delay_reason, Some(*reason), "seed {seed}: {row:?}");
        assert!(bounds.contains(&delay), "seed {seed}: the delay {delay:?} is not in {bounds:?}: {row:?}");
        let slept = pair[1].started - pair[0].ended.unwrap();
        assert!(
            slept >= delay && slept < delay + millis(2),
            "the call slept for {slept:?} instead of {delay:?}: {row:?}"
        );
    }
    for (attempt, seen) in attempts.iter().zip(inner.seen()) {
        assert_eq!(attempt.started, seen.at - start);
        assert!(seen.body.is_none_or(|sent| sent == body.bytes()), "{method} {responses:?} {settings:?}");
    }
    if delays.is_empty() && !responses.iter().any(|response| matches!(response, NoResponse | Delayed(..))) {
        assert_eq!(elapsed, Duration::ZERO, "{row:?}");
    }
    assert!(!delays.is_empty() || budget.left() == full, "a call without a retry spends no credit: {row:?}");
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_as_the_decision_table_expects() {
    for row in TABLE {
        for seed in 0..20 {
            check(row, seed).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn status_decides_whether_a_get_is_retried() {
    for status in 200..=599 {
        let (reason, delays): (_, &[ExpectedDelay]) = match status {
            408 | 500 | 502..=504 | 520..=524 | 530 => (Success, &[TRANSIENT_1]),
            420 | 429 | 509 | 529 => (Success, &[THROTTLED_1]),
            200..400 => (Success, &[]),
            _ => (NotRetryable, &[]),
        };
        check(&("GET", Empty, &[Status(status), Status(200)], &[], reason, delays), 0).await;
    }
}

#[test]
fn zero_max_attempts_are_rejected() {
    let errors = [
        RetryLayer::new().with_max_attempts(0).unwrap_err(),
        RetryOverride::new().with_max_attempts(0).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.field(), error.value()), ("max attempts", "0"));
    }
}
