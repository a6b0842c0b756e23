//! Tests the retry layer with a table of requests, responses, settings and expected results.

use std::io::ErrorKind::*;

use tower_outbound::call::StopReason::{self, Deadline, *};

use super::{
    case_runner::{
        CallResult::{self, *},
        Decide,
        RequestBody::{self, *},
        Setting::{self, *},
        check,
    },
    support::Scripted::{self, *},
    *,
};

/// The possible reasons for a delay, at most two, and the bounds of the delay in milliseconds.
pub(crate) type ExpectedDelay = (&'static [DelayReason], RangeInclusive<u64>);

/// The expected default backoff before the first, second, third and fourth retry, in milliseconds.
const TRANSIENT_1: ExpectedDelay = (&[DelayReason::Transient], 50..=100);
const TRANSIENT_2: ExpectedDelay = (&[DelayReason::Transient], 100..=200);
const TRANSIENT_3: ExpectedDelay = (&[DelayReason::Transient], 200..=400);
const TRANSIENT_4: ExpectedDelay = (&[DelayReason::Transient], 400..=800);

/// The expected default backoff after a throttled response, before the first and the second retry.
const THROTTLED_1: ExpectedDelay = (&[DelayReason::Throttled], 500..=1_000);
const THROTTLED_2: ExpectedDelay = (&[DelayReason::Throttled], 1_000..=2_000);

/// Expects a delay that the server requests, plus jitter. `bounds` are in milliseconds.
const fn requested(bounds: RangeInclusive<u64>) -> ExpectedDelay {
    (&[DelayReason::Requested], bounds)
}

/// Expects the throttled backoff or the requested delay, whichever is longer. The random jitter determines which delay
/// is longer.
const fn throttled_or_requested(bounds: RangeInclusive<u64>) -> ExpectedDelay {
    (&[DelayReason::Throttled, DelayReason::Requested], bounds)
}

/// Expects exactly this delay of a custom backoff, in milliseconds.
const fn custom(delay: u64) -> ExpectedDelay {
    (&[DelayReason::Transient], delay..=delay)
}

/// Expects exactly this delay of a custom backoff after a throttled response, in milliseconds.
const fn custom_throttled(delay: u64) -> ExpectedDelay {
    (&[DelayReason::Throttled], delay..=delay)
}

const AFTER_700_MS: HeaderPairs = &[("retry-after-ms", "700")];
const AFTER_1500_MS: HeaderPairs = &[("retry-after-ms", "1500")];
const AFTER_LISTS: HeaderPairs = &[("retry-after", "3, 9.5"), ("retry-after", "2")];

/// Headers with a `retry-after` date 10 s after the `date` header, and 1 s before it.
const AFTER_IMF_DATE: HeaderPairs = &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")];
const AFTER_PAST_DATE: HeaderPairs = &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:49:36 GMT")];

const RETRY_TRUE: HeaderPairs = &[("x-should-retry", "true")];
const RETRY_FALSE: HeaderPairs = &[("x-should-retry", "false")];
const RETRY_TWICE: HeaderPairs = &[("x-should-retry", "true"), ("x-should-retry", "true")];
const RETRY_CONTRADICTORY: HeaderPairs = &[("x-should-retry", "true"), ("x-should-retry", "false")];
const STRIPE_TRUE: HeaderPairs = &[("stripe-should-retry", "true")];
const STRIPE_FALSE: HeaderPairs = &[("stripe-should-retry", "false")];
const TRUE_AND_STRIPE_FALSE: HeaderPairs = &[("x-should-retry", "true"), ("stripe-should-retry", "false")];
const RETRY_INVALID: HeaderPairs = &[("x-should-retry", "perhaps")];

const NO_PERMITS: HeaderPairs = &[("x-ratelimit-remaining", "0")];
const NO_PERMITS_FOR_3_S: HeaderPairs = &[("x-ratelimit-remaining", "0"), ("retry-after", "3")];

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
const ALWAYS_SUCCESS: Decide = |_, _| Some(RetryDecision::Success);

/// A row of the decision table. Column `n` is the number of attempts. The service repeats the last response of a row.
pub(crate) type Row<'a> = (
    &'static str,
    RequestBody,
    &'a [Scripted],
    &'static [Setting],
    usize,
    CallResult,
    StopReason,
    &'static [ExpectedDelay],
);

#[rustfmt::skip]
const TABLE: &[Row<'static>] = &[
    // method,  body,          responses to the attempts,                settings,                        n, result,
    // stop reason,           delays A successful response is returned without a retry.
    ("GET",     Empty,         &[Status(200)],                           &[],                             1, Returns(200),               Success,               &[]),
    ("GET",     Empty,         &[Status(301)],                           &[],                             1, Returns(301),               Success,               &[]),
    // A GET is retried after a transient failure and after a throttled response.
    ("GET",     Empty,         &[Status(429), Status(200)],              &[],                             2, Returns(200),               Success,               &[THROTTLED_1]),
    ("GET",     Empty,         &[Status(503), Status(200)],              &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Status(529), Status(200)],              &[],                             2, Returns(200),               Success,               &[THROTTLED_1]),
    // A GET is not retried after an error of the client.
    ("GET",     Empty,         &[Status(404)],                           &[],                             1, Returns(404),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Status(503), Status(404)],              &[],                             2, Returns(404),               NotRetryable,          &[TRANSIENT_1]),
    ("GET",     Empty,         &[RetryAfter(404, "1")],                  &[],                             1, Returns(404),               NotRetryable,          &[]),
    ("PUT",     Buffered,      &[Status(503), Status(200)],              &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    // Every method is retried after a 429 or 529, because the server has rejected the request.
    ("POST",    Buffered,      &[Status(429), Status(200)],              &[],                             2, Returns(200),                Success,               &[THROTTLED_1]),
    ("POST",    Buffered,      &[Status(529), Status(200)],              &[],                             2, Returns(200),                Success,               &[THROTTLED_1]),
    ("POST",    Buffered,      &[RetryAfter(429, "1"), Status(200)],     &[],                             2, Returns(200),                Success,               &[throttled_or_requested(1_000..=1_500)]),
    ("POST",    Buffered,      &[Refused, Status(429), Status(201)],     &[],                             3, Returns(201),                Success,               &[TRANSIENT_1, THROTTLED_2]),
    ("POST",    Buffered,      &[Status(429)],                           &[],                             3, Returns(429),                Exhausted,             &[THROTTLED_1, THROTTLED_2]),
    ("POST",    Buffered,      &[Status(429)],                           &[MaxAttempts(1)],               1, Returns(429),                Exhausted,             &[]),
    ("POST",    Buffered,      &[Status(429), Status(503)],              &[],                             2, Returns(503),                NotIdempotent,         &[THROTTLED_1]),
    ("POST",    Buffered,      &[Status(429), Io(ConnectionReset)],      &[],                             2, IoError(ConnectionReset),    NotIdempotent,         &[THROTTLED_1]),
    // A setting restricts this to idempotent requests.
    ("POST",    Buffered,      &[Status(429)],                           &[RejectedIdempotent],           1, Returns(429),                NotIdempotent,         &[]),
    ("GET",     Empty,         &[Status(429), Status(200)],              &[RejectedIdempotent],           2, Returns(200),                Success,               &[THROTTLED_1]),
    ("POST",    Buffered,      &[Status(429), Status(200)],              &[RejectedIdempotent, HonouredKey],2, Returns(200),                Success,               &[THROTTLED_1]),
    // A method that is not idempotent is not retried if the server may have processed the request.
    ("POST",    Buffered,      &[Status(503)],                           &[],                             1, Returns(503),               NotIdempotent,         &[]),
    ("POST",    Buffered,      &[NoResponse],                            &[AttemptTimeout(90)],           1, Timeout,                    NotIdempotent,         &[]),
    ("POST",    Buffered,      &[Io(ConnectionReset)],                   &[],                             1, IoError(ConnectionReset),   NotIdempotent,         &[]),
    ("PATCH",   Buffered,      &[Status(503)],                           &[],                             1, Returns(503),               NotIdempotent,         &[]),
    ("PURGE",   Empty,         &[Status(503)],                           &[],                             1, Returns(503),               NotIdempotent,         &[]),
    ("get",     Empty,         &[Status(503)],                           &[],                             1, Returns(503),               NotIdempotent,         &[]),
    // A request that was not sent is retried with any method. A request that may have been sent is retried only if its
    // method is idempotent.
    ("PATCH",   Buffered,      &[Refused, Refused, Status(200)],         &[],                             3, Returns(200),               Success,               &[TRANSIENT_1, TRANSIENT_2]),
    ("POST",    Buffered,      &[Refused],                               &[],                             3, IoError(ConnectionRefused), Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("POST",    Buffered,      &[Refused, Status(503)],                  &[],                             2, Returns(503),               NotIdempotent,         &[TRANSIENT_1]),
    ("GET",     Empty,         &[Io(ConnectionReset), Status(200)],      &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[NoResponse, Status(200)],               &[AttemptTimeout(90)],           2, Returns(200),               Success,               &[TRANSIENT_1]),
    // The number of attempts is limited.
    ("GET",     Empty,         &[Status(503)],                           &[],                             3, Returns(503),               Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("GET",     Empty,         &[Status(429)],                           &[],                             3, Returns(429),               Exhausted,             &[THROTTLED_1, THROTTLED_2]),
    ("GET",     Empty,         &[Status(503)],                           &[MaxAttempts(1)],               1, Returns(503),               Exhausted,             &[]),
    ("GET",     Empty,         &[Status(503), Status(500), Status(502), Status(200)], &[MaxAttempts(4)],  4, Returns(200),               Success,               &[TRANSIENT_1, TRANSIENT_2, TRANSIENT_3]),
    ("GET",     Empty,         &[Status(429), Status(503), Status(200)], &[],                             3, Returns(200),               Success,               &[THROTTLED_1, TRANSIENT_2]),
    // The server requests a delay before the retry.
    ("GET",     Empty,         &[RetryAfter(503, "3"), Status(200)],     &[],                             2, Returns(200),               Success,               &[requested(3_000..=3_050)]),
    ("GET",     Empty,         &[RetryAfter(429, "3"), Status(200)],     &[],                             2, Returns(200),               Success,               &[requested(3_000..=3_500)]),
    ("GET",     Empty,         &[Headers(429, AFTER_1500_MS), Status(200)], &[],                          2, Returns(200),               Success,               &[requested(1_500..=2_000)]),
    ("GET",     Empty,         &[Headers(503, AFTER_LISTS), Status(200)], &[],                            2, Returns(200),               Success,               &[requested(9_500..=9_550)]),
    ("GET",     Empty,         &[Headers(429, AFTER_700_MS), Status(200)], &[],                           2, Returns(200),               Success,               &[throttled_or_requested(700..=1_200)]),
    ("GET",     Empty,         &[RetryAfter(503, "0"), Status(200)],     &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[RetryAfter(503, "soon"), Status(200)],  &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Headers(503, AFTER_IMF_DATE), Status(200)], &[],                         2, Returns(200),               Success,               &[requested(10_000..=10_050)]),
    ("GET",     Empty,         &[Headers(503, AFTER_PAST_DATE), Status(200)], &[],                        2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[RetryAfter(429, "120"), Status(200)],   &[],                             2, Returns(200),               Success,               &[requested(120_000..=120_500)]),
    ("GET",     Empty,         &[RetryAfter(503, "2"), RetryAfter(503, "4"), Status(200)], &[],           3, Returns(200),               Success,               &[requested(2_000..=2_050), requested(4_000..=4_100)]),
    // The call returns the response immediately if the requested delay is too long.
    ("GET",     Empty,         &[RetryAfter(429, "121")],                &[],                             1, Returns(429),               RequestedDelayTooLong, &[]),
    ("GET",     Empty,         &[RetryAfter(503, "6")],                  &[MaxRetryAfter(5)],             1, Returns(503),               RequestedDelayTooLong, &[]),
    ("GET",     Empty,         &[RetryAfter(503, "5"), Status(200)],     &[MaxRetryAfter(5)],             2, Returns(200),               Success,               &[requested(5_000..=5_050)]),
    ("GET",     Empty,         &[RetryAfter(503, "99999999999999999999")], &[],                           1, Returns(503),               RequestedDelayTooLong, &[]),
    // The call returns the response immediately if the delay before a retry would end after the deadline.
    ("GET",     Empty,         &[RetryAfter(503, "3")],                  &[TotalTimeout(3_000)],          1, Returns(503),               Deadline,              &[]),
    ("GET",     Empty,         &[RetryAfter(503, "3"), Status(200)],     &[TotalTimeout(3_100)],          2, Returns(200),               Success,               &[requested(3_000..=3_050)]),
    ("GET",     Empty,         &[Status(503)],                           &[TotalTimeout(50)],             1, Returns(503),               Deadline,              &[]),
    ("GET",     Empty,         &[NoResponse],                            &[TotalTimeout(80)],             1, DeadlineExceeded,           Deadline,              &[]),
    // A body longer than the replay limit is not replayed. The body `Buffered` has 5 bytes.
    ("PUT",     Buffered,      &[Status(503), Status(200)],              &[ReplayLimit(5)],               2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     Buffered,      &[Status(503)],                           &[ReplayLimit(4)],               1, Returns(503),               NotReplayable,         &[]),
    // The replay limit does not apply to a body that the service did not read.
    ("POST",    Buffered,      &[Refused, Status(200)],                  &[ReplayLimit(0)],               2, Returns(200),               Success,               &[TRANSIENT_1]),
    // The service reads each kind of request body completely, partly or not at all, or keeps the body.
    ("PUT",     Streamed,      &[Status(503), Status(200)],              &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     Streamed,      &[Status(503), Status(200)],              &[ReplayLimit(5)],               2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     Streamed,      &[Status(503)],                           &[ReplayLimit(4)],               1, Returns(503),               NotReplayable,         &[]),
    ("PUT",     Empty,         &[Status(503), Status(200)],              &[ReplayLimit(0)],               2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     LargeBuffered, &[Status(503)],                           &[],                             1, Returns(503),               NotReplayable,         &[]),
    ("PUT",     LargeBuffered, &[Status(503), Status(200)],              &[ReplayLimit(2_097_152)],       2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("POST",    LargeBuffered, &[Refused, Status(200)],                  &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     LargeStreamed, &[Status(200)],                           &[],                             1, Returns(200),               Success,               &[]),
    ("PUT",     Streamed,      &[AfterFirstFrame(503)],                  &[],                             1, Returns(503),               NotReplayable,         &[]),
    ("PUT",     Buffered,      &[AfterFirstFrame(503), Status(200)],     &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     Streamed,      &[BeforeBody(503), Status(200)],          &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     LargeStreamed, &[BeforeBody(503), BeforeBody(503), Status(200)], &[],                     3, Returns(200),               Success,               &[TRANSIENT_1, TRANSIENT_2]),
    ("PUT",     Buffered,      &[KeepsBody(503)],                        &[],                             1, Returns(503),               NotReplayable,         &[]),
    ("PUT",     Streamed,      &[KeepsBody(503)],                        &[],                             1, Returns(503),               NotReplayable,         &[]),
    ("GET",     Empty,         &[KeepsBody(503), Status(200)],           &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    // Among custom retry rules, the rule that was added last is evaluated first.
    ("GET",     Empty,         &[Status(409), Status(200)],              &[RetryOn(409)],                 2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Status(202), Status(200)],              &[RetryOn(202)],                 2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("POST",    Buffered,      &[Status(409)],                           &[RetryOn(409)],                 1, Returns(409),               NotIdempotent,         &[]),
    ("GET",     Empty,         &[Status(500)],                           &[NeverOn(500)],                 1, Returns(500),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Status(409)],                           &[RetryOn(409), NeverOn(409)],   1, Returns(409),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Status(409), Status(200)],              &[NeverOn(409), RetryOn(409)],   2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Headers(403, NO_PERMITS), Status(200)], &[Classifier(THROTTLED_403)],    2, Returns(200),               Success,               &[THROTTLED_1]),
    ("GET",     Empty,         &[Headers(403, NO_PERMITS_FOR_3_S), Status(200)], &[Classifier(THROTTLED_403)], 2, Returns(200),          Success,               &[requested(3_000..=3_500)]),
    ("GET",     Empty,         &[Status(403)],                           &[Classifier(THROTTLED_403)],    1, Returns(403),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Status(404)],                           &[Classifier(ALWAYS_TRANSIENT)], 3, Returns(404),               Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("POST",    Buffered,      &[Status(503)],                           &[Classifier(ALWAYS_TRANSIENT)], 1, Returns(503),               NotIdempotent,         &[]),
    ("POST",    Buffered,      &[Status(200)],                           &[Classifier(ALWAYS_TRANSIENT)], 1, Returns(200),               NotIdempotent,         &[]),
    ("GET",     Empty,         &[Status(503)],                           &[Classifier(NEVER_RETRYABLE)],  1, Returns(503),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Status(503)],                           &[Classifier(ALWAYS_SUCCESS)],   1, Returns(503),               Success,               &[]),
    // A response with status 101 ends the call, whatever a custom rule decides.
    ("GET",     Empty,         &[RetryAfter(101, "1")],                  &[Classifier(ALWAYS_TRANSIENT)], 1, Returns(101),               Success,               &[]),
    ("GET",     Empty,         &[Status(503), Status(101)],              &[Classifier(ALWAYS_TRANSIENT)], 2, Returns(101),               Success,               &[TRANSIENT_1]),
    // The header `x-should-retry` has an effect only in a response with a status of 400 to 599.
    ("GET",     Empty,         &[Headers(400, RETRY_TRUE), Status(200)], &[],                             2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Headers(429, RETRY_TRUE), Status(200)], &[],                             2, Returns(200),               Success,               &[THROTTLED_1]),
    ("GET",     Empty,         &[Headers(429, RETRY_FALSE)],             &[],                             1, Returns(429),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Headers(503, RETRY_FALSE)],             &[],                             1, Returns(503),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Headers(200, RETRY_TRUE)],              &[],                             1, Returns(200),               Success,               &[]),
    ("GET",     Empty,         &[Headers(400, RETRY_TWICE), Status(200)], &[],                            2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Headers(400, RETRY_CONTRADICTORY)],     &[],                             1, Returns(400),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Headers(503, RETRY_CONTRADICTORY), Status(200)], &[],                    2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Headers(400, STRIPE_TRUE), Status(200)],&[],                             2, Returns(200),                Success,               &[TRANSIENT_1]),
    ("GET",     Empty,         &[Headers(503, STRIPE_FALSE)],            &[],                             1, Returns(503),                NotRetryable,          &[]),
    ("GET",     Empty,         &[Headers(400, TRUE_AND_STRIPE_FALSE)],   &[],                             1, Returns(400),                NotRetryable,          &[]),
    ("POST",    Buffered,      &[Headers(400, STRIPE_TRUE)],             &[],                             1, Returns(400),                NotIdempotent,         &[]),
    ("GET",     Empty,         &[Headers(400, RETRY_INVALID)],           &[],                             1, Returns(400),               NotRetryable,          &[]),
    ("POST",    Buffered,      &[Headers(503, RETRY_TRUE)],              &[],                             1, Returns(503),               NotIdempotent,         &[]),
    ("POST",    Buffered,      &[Headers(503, RETRY_FALSE)],             &[HonouredKey],                  1, Returns(503),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Headers(503, RETRY_TRUE)],              &[NeverOn(503)],                 1, Returns(503),               NotRetryable,          &[]),
    ("GET",     Empty,         &[Headers(409, RETRY_FALSE), Status(200)], &[RetryOn(409)],                2, Returns(200),               Success,               &[TRANSIENT_1]),
    // Overrides in the request's extensions replace the settings of the retry layer.
    ("GET",     Empty,         &[Status(503)],                           &[WithoutRetries],               1, Returns(503),               Exhausted,             &[]),
    ("GET",     Empty,         &[Status(503)],                           &[RequestMaxAttempts(5)],        5, Returns(503),               Exhausted,             &[TRANSIENT_1, TRANSIENT_2, TRANSIENT_3, TRANSIENT_4]),
    ("GET",     Empty,         &[Status(503)],                           &[RequestMaxAttempts(2), MaxAttempts(5)], 2, Returns(503),      Exhausted,             &[TRANSIENT_1]),
    ("POST",    Buffered,      &[Status(503), Status(200)],              &[DeclaredIdempotent],           2, Returns(200),               Success,               &[TRANSIENT_1]),
    // A request with any method is retried if the server honours idempotency keys.
    ("POST",    Buffered,      &[Status(503), Status(200)],              &[HonouredKey],                  2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("POST",    Buffered,      &[Io(ConnectionReset), Status(200)],      &[HonouredKey],                  2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("POST",    Buffered,      &[Status(503), Status(200)],              &[HonouredKey, CallerKey],       2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("POST",    Buffered,      &[Status(503)],                           &[CallerKey],                    1, Returns(503),               NotIdempotent,         &[]),
    ("POST",    Buffered,      &[Status(409)],                           &[HonouredKey],                  1, Returns(409),               NotRetryable,          &[]),
    ("PATCH",   Buffered,      &[Status(503)],                           &[HonouredKey],                  3, Returns(503),               Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("GET",     Empty,         &[Status(503), Status(200)],              &[HonouredKey],                  2, Returns(200),               Success,               &[TRANSIENT_1]),
    ("PUT",     Buffered,      &[Status(503), Status(200)],              &[HonouredKey, CallerKey],       2, Returns(200),               Success,               &[TRANSIENT_1]),
    // The request's extensions contain a deadline. The earlier of two deadlines applies.
    ("GET",     Empty,         &[RetryAfter(503, "3")],                  &[RequestDeadline(3_000)],       1, Returns(503),               Deadline,              &[]),
    ("GET",     Empty,         &[Status(503)],                           &[RequestDeadline(50)],          1, Returns(503),               Deadline,              &[]),
    ("GET",     Empty,         &[Delayed(60, 503)],                      &[RequestDeadline(100)],         1, Returns(503),               Deadline,              &[]),
    ("GET",     Empty,         &[Delayed(60, 200)],                      &[RequestDeadline(50)],          1, DeadlineExceeded,           Deadline,              &[]),
    ("GET",     Empty,         &[RetryAfter(503, "3")],                  &[RequestDeadline(3_000), TotalTimeout(9_000)], 1, Returns(503), Deadline,             &[]),
    ("GET",     Empty,         &[RetryAfter(503, "3")],                  &[RequestDeadline(9_000), TotalTimeout(3_000)], 1, Returns(503), Deadline,             &[]),
    // A custom backoff with a limited number of delays allows one retry for each delay.
    ("GET",     Empty,         &[Status(503)],                           &[TransientBackoff(&[1_000, 2_000]), MaxAttempts(9)], 3, Returns(503), Exhausted,      &[custom(1_000), custom(2_000)]),
    ("GET",     Empty,         &[Status(503)],                           &[TransientBackoff(&[1_000, 2_000, 3_000])], 3, Returns(503),   Exhausted,             &[custom(1_000), custom(2_000)]),
    ("GET",     Empty,         &[Status(503)],                           &[TransientBackoff(&[])],        1, Returns(503),               Exhausted,             &[]),
    ("GET",     Empty,         &[Status(503), Status(200)],              &[TransientBackoff(&[0])],       2, Returns(200),               Success,               &[custom(0)]),
    ("GET",     Empty,         &[RetryAfter(503, "3"), Status(200)],     &[TransientBackoff(&[1_000])],   2, Returns(200),               Success,               &[requested(3_000..=3_500)]),
    ("GET",     Empty,         &[RetryAfter(503, "1"), Status(200)],     &[TransientBackoff(&[2_000])],   2, Returns(200),               Success,               &[custom(2_000)]),
    ("GET",     Empty,         &[Status(503)],                           &[TransientBackoff(&[u64::MAX]), TotalTimeout(3_000)], 1, Returns(503), Deadline,      &[]),
    ("GET",     Empty,         &[Status(429)],                           &[TransientBackoff(&[1])],       3, Returns(429),               Exhausted,             &[THROTTLED_1, THROTTLED_2]),
    ("GET",     Empty,         &[Status(429)],                           &[ThrottledBackoff(&[5, 6]), MaxAttempts(9)], 3, Returns(429),  Exhausted,             &[custom_throttled(5), custom_throttled(6)]),
    ("GET",     Empty,         &[Status(429), Status(503), Status(429), Status(503), Status(200)], &[TransientBackoff(&[1, 2]), ThrottledBackoff(&[3, 4]), MaxAttempts(5)], 5, Returns(200), Success, &[custom_throttled(3), custom(1), custom_throttled(4), custom(2)]),
    // The budget limits the retries. A retry costs 14 credits, or 5 credits after a throttled response.
    ("GET",     Empty,         &[Status(503)],                           &[BudgetCapacity(14)],           2, Returns(503),               Budget,                &[TRANSIENT_1]),
    ("GET",     Empty,         &[Status(503)],                           &[BudgetCapacity(27)],           2, Returns(503),               Budget,                &[TRANSIENT_1]),
    ("GET",     Empty,         &[Status(503)],                           &[BudgetCapacity(28)],           3, Returns(503),               Exhausted,             &[TRANSIENT_1, TRANSIENT_2]),
    ("GET",     Empty,         &[Status(429)],                           &[BudgetCapacity(14)],           3, Returns(429),               Exhausted,             &[THROTTLED_1, THROTTLED_2]),
    ("GET",     Empty,         &[Status(429)],                           &[BudgetCapacity(14), MaxAttempts(4)], 3, Returns(429),         Budget,                &[THROTTLED_1, THROTTLED_2]),
    ("PUT",     LargeBuffered, &[Status(503)],                           &[BudgetCapacity(14)],           1, Returns(503),               NotReplayable,         &[]),
    ("GET",     Empty,         &[Status(503)],                           &[WithoutBudget, RequestMaxAttempts(4)], 4, Returns(503),       Exhausted,             &[TRANSIENT_1, TRANSIENT_2, TRANSIENT_3]),
];

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
    for status in 300..=599 {
        let retried: fn(&'static [ExpectedDelay]) -> _ = |delays| (2, Returns(200), Success, delays);
        let (attempts, result, reason, delays) = match status {
            408 | 500 | 502..=504 | 520..=524 | 530 => retried(&[TRANSIENT_1]),
            420 | 429 | 509 | 529 => retried(&[THROTTLED_1]),
            300..400 => (1, Returns(status), Success, &[][..]),
            _ => (1, Returns(status), NotRetryable, &[][..]),
        };
        let responses = [Status(status), Status(200)];
        check(&("GET", Empty, &responses, &[], attempts, result, reason, delays), 0).await;
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
