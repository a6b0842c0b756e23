//! Which requests are retried, how often, and after which delay.

use std::{io::ErrorKind::*, ops::RangeInclusive};

use http::StatusCode;
use tower_outbound::{
    call::{
        DelayReason,
        StopReason::{self, *},
    },
    retry::RetryDecision,
};

use super::{
    DATE, Headers,
    scenario::{
        Content::{self, *},
        Out::{self, *},
        Rule,
        Set::{self, *},
        check,
    },
    support::Scripted::{self, *},
};

/// The possible reasons of a delay, at most two, and its bounds in milliseconds.
pub(crate) type Wait = (&'static [DelayReason], RangeInclusive<u64>);

/// The backoff before each retry, after a transient failure and after a throttled response.
const T1: Wait = (&[DelayReason::Transient], 50..=100);
const T2: Wait = (&[DelayReason::Transient], 100..=200);
const T3: Wait = (&[DelayReason::Transient], 200..=400);
const T4: Wait = (&[DelayReason::Transient], 400..=800);
const H1: Wait = (&[DelayReason::Throttled], 500..=1_000);
const H2: Wait = (&[DelayReason::Throttled], 1_000..=2_000);

const fn asked(bounds: RangeInclusive<u64>) -> Wait {
    (&[DelayReason::Requested], bounds)
}

/// A throttled response that requests a delay within the bounds of the backoff.
const fn either(bounds: RangeInclusive<u64>) -> Wait {
    (&[DelayReason::Throttled, DelayReason::Requested], bounds)
}

const fn exactly(step: u64) -> Wait {
    (&[DelayReason::Transient], step..=step)
}

const fn hot(step: u64) -> Wait {
    (&[DelayReason::Throttled], step..=step)
}

const MS_1: Headers = &[("retry-after-ms", "1")];
const MS_700: Headers = &[("retry-after-ms", "700")];
const MS_1500: Headers = &[("retry-after-ms", "1500")];
const MS_1500_7: Headers = &[("retry-after-ms", "1500.7")];
const MS_LIST: Headers = &[("retry-after-ms", "300, 1499.5"), ("retry-after-ms", "2")];
const LINES: Headers = &[("retry-after", "3, 9.5"), ("retry-after", "2")];
const X_MS_1500: Headers = &[("x-ms-retry-after-ms", "1500")];
const IMF_IN_10: Headers = &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")];
const RFC850_IN_10: Headers = &[DATE, ("retry-after", "Sunday, 06-Nov-94 08:49:47 GMT")];
const ASCTIME_IN_10: Headers = &[DATE, ("retry-after", "Sun Nov  6 08:49:47 1994")];
const IMF_PAST: Headers = &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:49:36 GMT")];

const YES: Headers = &[("x-should-retry", "true")];
const NO: Headers = &[("x-should-retry", "false")];
const YES_TWICE: Headers = &[("x-should-retry", "true"), ("x-should-retry", "true")];
const YES_AND_NO: Headers = &[("x-should-retry", "true"), ("x-should-retry", "false")];
const PERHAPS: Headers = &[("x-should-retry", "perhaps")];

const SPENT: Headers = &[("x-ratelimit-remaining", "0")];
const SPENT_FOR_3: Headers = &[("x-ratelimit-remaining", "0"), ("retry-after", "3")];

/// Some services throttle by a 403.
const SPENT_403: Rule = |_, attempt| match (attempt.outcome.status(), attempt.headers) {
    (Some(StatusCode::FORBIDDEN), Some(headers)) => {
        let spent = headers.get("x-ratelimit-remaining").is_some_and(|left| left == "0");
        spent.then_some(RetryDecision::Throttled)
    }
    _ => None,
};
const AGAIN: Rule = |_, _| Some(RetryDecision::Transient);
const NO_MORE: Rule = |_, _| Some(RetryDecision::NotRetryable);
const WELL: Rule = |_, _| Some(RetryDecision::Success);

pub(crate) type Row =
    (&'static str, Content, &'static [Scripted], &'static [Set], usize, Out, StopReason, &'static [Wait]);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    // method,  body,   outcomes in turn,                               settings,                       n, what comes out,             ended,         delays
    // Nothing to retry.
    ("GET",     Empty,  &[Status(200)],                                     &[],                            1, Returns(200),                Success,       &[]),
    ("POST",    Memory, &[Status(201)],                                     &[],                            1, Returns(201),                Success,       &[]),
    ("GET",     Empty,  &[Status(204)],                                     &[],                            1, Returns(204),                Success,       &[]),
    ("GET",     Empty,  &[Status(301)],                                     &[],                            1, Returns(301),                Success,       &[]),
    ("GET",     Empty,  &[Status(304)],                                     &[],                            1, Returns(304),                Success,       &[]),
    // Statuses that are retried.
    ("GET",     Empty,  &[Status(408), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(429), Status(200)],                            &[],                            2, Returns(200),                Success,       &[H1]),
    ("GET",     Empty,  &[Status(500), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(502), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(503), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(504), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(520), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(521), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(522), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(523), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(524), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(530), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(529), Status(200)],                            &[],                            2, Returns(200),                Success,       &[H1]),
    // Statuses that are not retried.
    ("GET",     Empty,  &[Status(400)],                                     &[],                            1, Returns(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(401)],                                     &[],                            1, Returns(401),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(403)],                                     &[],                            1, Returns(403),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(404)],                                     &[],                            1, Returns(404),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(409)],                                     &[],                            1, Returns(409),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(422)],                                     &[],                            1, Returns(422),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(501)],                                     &[],                            1, Returns(501),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(505)],                                     &[],                            1, Returns(505),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(519)],                                     &[],                            1, Returns(519),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(525)],                                     &[],                            1, Returns(525),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(526)],                                     &[],                            1, Returns(526),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(527)],                                     &[],                            1, Returns(527),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(528)],                                     &[],                            1, Returns(528),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(531)],                                     &[],                            1, Returns(531),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(503), Status(404)],                            &[],                            2, Returns(404),                NotRetryable,  &[T1]),
    ("GET",     Empty,  &[RetryAfter(404, "1")],                              &[],                            1, Returns(404),                NotRetryable,  &[]),
    // The other idempotent methods.
    ("HEAD",    Empty,  &[Status(503), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("OPTIONS", Empty,  &[Status(503), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("TRACE",   Empty,  &[Status(503), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Status(503), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("DELETE",  Empty,  &[Status(429), Status(200)],                            &[],                            2, Returns(200),                Success,       &[H1]),
    // Requests that must not be processed twice.
    ("POST",    Memory, &[Status(408)],                                     &[],                            1, Returns(408),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(429)],                                     &[],                            1, Returns(429),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(500)],                                     &[],                            1, Returns(500),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(503)],                                     &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(504)],                                     &[],                            1, Returns(504),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(520)],                                     &[],                            1, Returns(520),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(529)],                                     &[],                            1, Returns(529),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(530)],                                     &[],                            1, Returns(530),                NotIdempotent, &[]),
    ("POST",    Memory, &[RetryAfter(503, "1")],                              &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[NoResponse],                                      &[PerAttempt(90)],              1, Timeout,                    NotIdempotent, &[]),
    ("POST",    Memory, &[Io(ConnectionReset)],                         &[],                            1, Service(ConnectionReset),   NotIdempotent, &[]),
    ("POST",    Memory, &[Io(BrokenPipe)],                              &[],                            1, Service(BrokenPipe),        NotIdempotent, &[]),
    ("POST",    Memory, &[Io(UnexpectedEof)],                           &[],                            1, Service(UnexpectedEof),     NotIdempotent, &[]),
    ("PATCH",   Memory, &[Status(429)],                                     &[],                            1, Returns(429),                NotIdempotent, &[]),
    ("PATCH",   Memory, &[Status(503)],                                     &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("PATCH",   Memory, &[Status(504)],                                     &[],                            1, Returns(504),                NotIdempotent, &[]),
    ("PATCH",   Memory, &[NoResponse],                                      &[PerAttempt(90)],              1, Timeout,                    NotIdempotent, &[]),
    ("PURGE",   Empty,  &[Status(503)],                                     &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("get",     Empty,  &[Status(503)],                                     &[],                            1, Returns(503),                NotIdempotent, &[]),
    // Not sent: any method. Maybe processed: idempotent requests.
    ("POST",    Memory, &[Refused, Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("PATCH",   Memory, &[Refused, Refused, Status(200)],                   &[],                            3, Returns(200),                Success,       &[T1, T2]),
    ("POST",    Memory, &[Refused],                                     &[],                            3, Service(ConnectionRefused), Exhausted,     &[T1, T2]),
    ("POST",    Memory, &[Refused, Status(503)],                            &[],                            2, Returns(503),                NotIdempotent, &[T1]),
    ("POST",    Memory, &[Refused, Io(ConnectionReset)],                &[],                            2, Service(ConnectionReset),   NotIdempotent, &[T1]),
    ("GET",     Empty,  &[Io(ConnectionReset), Status(200)],                &[],                            2, Returns(200),                Success,       &[T1]),
    ("DELETE",  Empty,  &[Io(UnexpectedEof), Status(200)],                  &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Io(BrokenPipe)],                              &[],                            3, Service(BrokenPipe),        Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[NoResponse, Status(200)],                             &[PerAttempt(90)],              2, Returns(200),                Success,       &[T1]),
    ("PUT",     Memory, &[NoResponse],                                      &[PerAttempt(90)],              3, Timeout,                    Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Io(ConnectionReset), NoResponse, Status(200)],        &[PerAttempt(90)],              3, Returns(200),                Success,       &[T1, T2]),
    // The number of attempts.
    ("GET",     Empty,  &[Status(503)],                                     &[],                            3, Returns(503),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Status(429)],                                     &[],                            3, Returns(429),                Exhausted,     &[H1, H2]),
    ("GET",     Empty,  &[Status(503)],                                     &[Attempts(1)],                 1, Returns(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Refused],                                     &[Attempts(1)],                 1, Service(ConnectionRefused), Exhausted,     &[]),
    ("GET",     Empty,  &[Status(200)],                                     &[Attempts(1)],                 1, Returns(200),                Success,       &[]),
    ("GET",     Empty,  &[Status(503), Status(500), Status(502), Status(200)],          &[Attempts(4)],                 4, Returns(200),                Success,       &[T1, T2, T3]),
    ("GET",     Empty,  &[Status(429), Status(503), Status(200)],                   &[],                            3, Returns(200),                Success,       &[H1, T2]),
    ("GET",     Empty,  &[Status(503), Status(429), Status(200)],                   &[],                            3, Returns(200),                Success,       &[T1, H2]),
    // Requested delays, which are never shortened.
    ("GET",     Empty,  &[RetryAfter(503, "3"), Status(200)],                     &[],                            2, Returns(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[RetryAfter(429, "3"), Status(200)],                     &[],                            2, Returns(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[RetryAfter(500, "3"), Status(200)],                     &[],                            2, Returns(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Headers(429, MS_1500), Status(200)],                 &[],                            2, Returns(200),                Success,       &[asked(1_500..=2_000)]),
    ("GET",     Empty,  &[Headers(429, MS_1500_7), Status(200)],               &[],                            2, Returns(200),                Success,       &[asked(1_501..=2_001)]),
    ("GET",     Empty,  &[Headers(503, MS_LIST), Status(200)],                 &[],                            2, Returns(200),                Success,       &[asked(1_500..=1_550)]),
    ("GET",     Empty,  &[RetryAfter(503, "1.5"), Status(200)],                   &[],                            2, Returns(200),                Success,       &[asked(2_000..=2_050)]),
    ("GET",     Empty,  &[RetryAfter(503, "3, 9"), Status(200)],                  &[],                            2, Returns(200),                Success,       &[asked(9_000..=9_050)]),
    ("GET",     Empty,  &[Headers(503, LINES), Status(200)],                   &[],                            2, Returns(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[RetryAfter(529, "3"), Status(200)],                     &[],                            2, Returns(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[RetryAfter(524, "3"), Status(200)],                     &[],                            2, Returns(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Headers(503, X_MS_1500), Status(200)],               &[],                            2, Returns(200),                Success,       &[asked(1_500..=1_550)]),
    ("GET",     Empty,  &[Headers(429, MS_700), Status(200)],                  &[],                            2, Returns(200),                Success,       &[either(700..=1_200)]),
    ("GET",     Empty,  &[Headers(503, MS_1), Status(200)],                    &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[RetryAfter(503, "0"), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[RetryAfter(503, "soon"), Status(200)],                  &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[RetryAfter(503, "-3"), Status(200)],                    &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(503, IMF_IN_10), Status(200)],               &[],                            2, Returns(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[Headers(503, RFC850_IN_10), Status(200)],            &[],                            2, Returns(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[Headers(503, ASCTIME_IN_10), Status(200)],           &[],                            2, Returns(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[Headers(503, IMF_PAST), Status(200)],                &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[RetryAfter(503, "Sun, 06 Nov 1994 08:49:47 GMT"), Status(200)], &[],                    2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[RetryAfter(429, "120"), Status(200)],                   &[],                            2, Returns(200),                Success,       &[asked(120_000..=120_500)]),
    ("GET",     Empty,  &[RetryAfter(503, "2"), RetryAfter(503, "4"), Status(200)],     &[],                            3, Returns(200),                Success,       &[asked(2_000..=2_050), asked(4_000..=4_100)]),
    // A requested delay that is too long: the response is returned at once.
    ("GET",     Empty,  &[RetryAfter(429, "121")],                            &[],                            1, Returns(429),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[RetryAfter(503, "6")],                              &[MaxAsk(5)],                   1, Returns(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[RetryAfter(503, "5"), Status(200)],                     &[MaxAsk(5)],                   2, Returns(200),                Success,       &[asked(5_000..=5_050)]),
    ("GET",     Empty,  &[RetryAfter(503, "99999999999999999999")],           &[],                            1, Returns(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[RetryAfter(503, "Fri, 31 Dec 9999 23:59:59 GMT")],  &[],                            1, Returns(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Status(503), RetryAfter(429, "121")],                   &[],                            2, Returns(429),                RequestedDelayTooLong,  &[T1]),
    ("POST",    Memory, &[RetryAfter(429, "121")],                            &[],                            1, Returns(429),                NotIdempotent, &[]),
    // A delay beyond the deadline: the response is returned at once.
    ("GET",     Empty,  &[RetryAfter(503, "3")],                              &[Total(3_000)],                1, Returns(503),                Deadline,      &[]),
    ("GET",     Empty,  &[RetryAfter(503, "3"), Status(200)],                     &[Total(3_100)],                2, Returns(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Status(503)],                                     &[Total(50)],                   1, Returns(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Io(ConnectionReset)],                         &[Total(50)],                   1, Service(ConnectionReset),   Deadline,      &[]),
    ("GET",     Empty,  &[NoResponse],                                      &[Total(80)],                   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[NoResponse],                                      &[Total(80), PerAttempt(90)],   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[Status(503), NoResponse],                             &[Total(500), PerAttempt(900)], 2, OverDeadline,               Deadline,      &[T1]),
    // The body of 5 bytes.
    ("PUT",     Memory, &[Status(503), Status(200)],                            &[Replay(5)],                   2, Returns(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Status(503)],                                     &[Replay(4)],                   1, Returns(503),                NotReplayable, &[]),
    ("PUT",     Memory, &[Io(ConnectionReset)],                         &[Replay(4)],                   1, Service(ConnectionReset),   NotReplayable, &[]),
    ("PUT",     Memory, &[Status(200)],                                     &[Replay(0)],                   1, Returns(200),                Success,       &[]),
    // Nothing of the body was read, so it is replayed at any size.
    ("POST",    Memory, &[Refused, Status(200)],                            &[Replay(0)],                   2, Returns(200),                Success,       &[T1]),
    // The body: none, in memory, streamed or over the replay limit, and read whole, in part, not at all or still held.
    ("PUT",     Stream, &[Status(503), Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Io(ConnectionReset), Status(503), Status(200)],       &[],                            3, Returns(200),                Success,       &[T1, T2]),
    ("PUT",     Stream, &[NoResponse, Status(200)],                             &[PerAttempt(90)],              2, Returns(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Status(503), Status(200)],                            &[Replay(5)],                   2, Returns(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Status(503)],                                     &[Replay(4)],                   1, Returns(503),                NotReplayable, &[]),
    ("PUT",     Empty,  &[Status(503), Status(200)],                            &[Replay(0)],                   2, Returns(200),                Success,       &[T1]),
    ("PUT",     Large,  &[Status(200)],                                     &[],                            1, Returns(200),                Success,       &[]),
    ("PUT",     Large,  &[Status(503)],                                     &[],                            1, Returns(503),                NotReplayable, &[]),
    ("PUT",     Large,  &[Io(BrokenPipe)],                              &[],                            1, Service(BrokenPipe),        NotReplayable, &[]),
    ("PUT",     Large,  &[NoResponse],                                      &[PerAttempt(90)],              1, Timeout,                    NotReplayable, &[]),
    ("PUT",     Large,  &[RetryAfter(503, "3")],                              &[],                            1, Returns(503),                NotReplayable, &[]),
    ("PUT",     Large,  &[Status(404)],                                     &[],                            1, Returns(404),                NotRetryable,  &[]),
    ("PUT",     Large,  &[Status(503)],                                     &[Attempts(1)],                 1, Returns(503),                Exhausted,     &[]),
    ("PUT",     Large,  &[Status(503), Status(200)],                            &[Replay(2_097_152)],           2, Returns(200),                Success,       &[T1]),
    ("POST",    Large,  &[Status(503)],                                     &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Large,  &[Refused, Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("PUT",     Flood,  &[Status(200)],                                     &[],                            1, Returns(200),                Success,       &[]),
    ("PUT",     Flood,  &[Status(503)],                                     &[],                            1, Returns(503),                NotReplayable, &[]),
    ("POST",    Flood,  &[Refused, Status(200)],                            &[],                            2, Returns(200),                Success,       &[T1]),
    ("POST",    Flood,  &[Refused, Status(503)],                            &[],                            2, Returns(503),                NotIdempotent, &[T1]),
    ("PUT",     Stream, &[AfterFirstFrame(503)],                                   &[],                            1, Returns(503),                NotReplayable, &[]),
    ("PUT",     Flood,  &[AfterFirstFrame(503)],                                   &[],                            1, Returns(503),                NotReplayable, &[]),
    ("POST",    Stream, &[AfterFirstFrame(503)],                                   &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("PUT",     Memory, &[AfterFirstFrame(503), Status(200)],                          &[],                            2, Returns(200),                Success,       &[T1]),
    ("PUT",     Memory, &[BeforeBody(503), Status(200)],                         &[],                            2, Returns(200),                Success,       &[T1]),
    ("PUT",     Stream, &[BeforeBody(503), Status(200)],                         &[],                            2, Returns(200),                Success,       &[T1]),
    ("PUT",     Stream, &[BeforeBody(503), AfterFirstFrame(503)],                       &[],                            2, Returns(503),                NotReplayable, &[T1]),
    ("PUT",     Flood,  &[BeforeBody(503), BeforeBody(503), Status(200)],             &[],                            3, Returns(200),                Success,       &[T1, T2]),
    ("POST",    Stream, &[BeforeBody(503)],                                  &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("PUT",     Memory, &[KeepsBody(503)],                                  &[],                            1, Returns(503),                NotReplayable, &[]),
    ("PUT",     Stream, &[KeepsBody(503)],                                  &[],                            1, Returns(503),                NotReplayable, &[]),
    ("GET",     Empty,  &[KeepsBody(503), Status(200)],                         &[],                            2, Returns(200),                Success,       &[T1]),
    // Custom rules. The last one is evaluated first.
    ("GET",     Empty,  &[Status(409), Status(200)],                            &[RetryOn(409)],                2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(409)],                                     &[RetryOn(409)],                3, Returns(409),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Status(202), Status(200)],                            &[RetryOn(202)],                2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Status(409)],                                     &[RetryOn(409)],                1, Returns(409),                NotIdempotent, &[]),
    ("PUT",     Large,  &[Status(409)],                                     &[RetryOn(409)],                1, Returns(409),                NotReplayable, &[]),
    ("GET",     Empty,  &[Status(500)],                                     &[NeverOn(500)],                1, Returns(500),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(429)],                                     &[NeverOn(429)],                1, Returns(429),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(500), Status(503)],                            &[NeverOn(503)],                2, Returns(503),                NotRetryable,  &[T1]),
    ("GET",     Empty,  &[Status(409)],                                     &[RetryOn(409), NeverOn(409)],  1, Returns(409),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(409), Status(200)],                            &[NeverOn(409), RetryOn(409)],  2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(403, SPENT)],                            &[],                            1, Returns(403),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(403, SPENT), Status(200)],                   &[When(SPENT_403)],             2, Returns(200),                Success,       &[H1]),
    ("GET",     Empty,  &[Headers(403, SPENT_FOR_3), Status(200)],             &[When(SPENT_403)],             2, Returns(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[Status(403)],                                     &[When(SPENT_403)],             1, Returns(403),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(503), Status(200)],                            &[When(SPENT_403)],             2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Headers(403, SPENT)],                            &[When(SPENT_403)],             1, Returns(403),                NotIdempotent, &[]),
    ("GET",     Empty,  &[Status(404)],                                     &[When(AGAIN)],                 3, Returns(404),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Status(200)],                                     &[When(AGAIN)],                 3, Returns(200),                Exhausted,     &[T1, T2]),
    ("POST",    Memory, &[Status(503)],                                     &[When(AGAIN)],                 1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(200)],                                     &[When(AGAIN)],                 1, Returns(200),                NotIdempotent, &[]),
    ("POST",    Memory, &[Io(ConnectionReset)],                         &[When(AGAIN)],                 1, Service(ConnectionReset),   NotIdempotent, &[]),
    ("POST",    Memory, &[NoResponse],                                      &[When(AGAIN), PerAttempt(90)], 1, Timeout,                    NotIdempotent, &[]),
    ("POST",    Memory, &[Refused, Status(503)],                            &[When(AGAIN)],                 2, Returns(503),                NotIdempotent, &[T1]),
    ("PUT",     Stream, &[AfterFirstFrame(503)],                                   &[When(AGAIN)],                 1, Returns(503),                NotReplayable, &[]),
    ("GET",     Empty,  &[NoResponse],                                      &[When(AGAIN), Total(80)],      1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[RetryAfter(503, "121")],                            &[When(AGAIN)],                 1, Returns(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Status(503)],                                     &[When(NO_MORE)],               1, Returns(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Refused],                                     &[When(NO_MORE)],               1, Service(ConnectionRefused), NotRetryable,  &[]),
    ("GET",     Empty,  &[NoResponse],                                      &[When(NO_MORE), PerAttempt(90)], 1, Timeout,                  NotRetryable,  &[]),
    ("GET",     Empty,  &[Status(503)],                                     &[When(WELL)],                  1, Returns(503),                Success,       &[]),
    // A 101 is returned, whatever a rule decides.
    ("GET",     Empty,  &[Status(101)],                                     &[],                            1, Returns(101),                Success,       &[]),
    ("GET",     Empty,  &[RetryAfter(101, "1")],                              &[When(AGAIN)],                 1, Returns(101),                Success,       &[]),
    ("GET",     Empty,  &[Headers(101, YES)],                              &[RetryOn(101)],                1, Returns(101),                Success,       &[]),
    ("GET",     Empty,  &[Status(503), Status(101)],                            &[When(AGAIN)],                 2, Returns(101),                Success,       &[T1]),
    // `x-should-retry` on a 4xx or 5xx.
    ("GET",     Empty,  &[Headers(400, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(404, YES)],                              &[],                            3, Returns(404),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Headers(429, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[H1]),
    ("GET",     Empty,  &[Headers(500, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(501, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(505, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(409, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(529, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[H1]),
    ("GET",     Empty,  &[Headers(529, NO)],                               &[],                            1, Returns(529),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(524, NO)],                               &[],                            1, Returns(524),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(503, YES), Status(200)],                     &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(400, NO)],                               &[],                            1, Returns(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(429, NO)],                               &[],                            1, Returns(429),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(500, NO)],                               &[],                            1, Returns(500),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(503, NO)],                               &[],                            1, Returns(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(200, YES)],                              &[],                            1, Returns(200),                Success,       &[]),
    ("GET",     Empty,  &[Headers(302, YES)],                              &[],                            1, Returns(302),                Success,       &[]),
    ("GET",     Empty,  &[Headers(200, NO)],                               &[],                            1, Returns(200),                Success,       &[]),
    ("GET",     Empty,  &[Headers(400, YES_TWICE), Status(200)],               &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(400, YES_AND_NO)],                       &[],                            1, Returns(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(503, YES_AND_NO), Status(200)],              &[],                            2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Headers(400, PERHAPS)],                          &[],                            1, Returns(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(503, PERHAPS), Status(200)],                 &[],                            2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Headers(503, YES)],                              &[],                            1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Headers(503, NO)],                               &[Keyed],                       1, Returns(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(503, YES)],                              &[NeverOn(503)],                1, Returns(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Headers(409, NO), Status(200)],                      &[RetryOn(409)],                2, Returns(200),                Success,       &[T1]),
    // Overrides in the request's extensions.
    ("GET",     Empty,  &[Status(503)],                                     &[Never],                       1, Returns(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Status(200)],                                     &[Never],                       1, Returns(200),                Success,       &[]),
    ("POST",    Memory, &[Refused],                                     &[Never],                       1, Service(ConnectionRefused), Exhausted,     &[]),
    ("GET",     Empty,  &[Status(503)],                                     &[Own(5)],                      5, Returns(503),                Exhausted,     &[T1, T2, T3, T4]),
    ("GET",     Empty,  &[Status(503)],                                     &[Own(2), Attempts(5)],         2, Returns(503),                Exhausted,     &[T1]),
    ("GET",     Empty,  &[Status(503)],                                     &[Own(2), Attempts(1)],         2, Returns(503),                Exhausted,     &[T1]),
    ("POST",    Memory, &[Status(503)],                                     &[Own(5)],                      1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(503), Status(200)],                            &[Idempotent],                  2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[NoResponse, Status(200)],                             &[Idempotent, PerAttempt(90)],  2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Status(400)],                                     &[Idempotent],                  1, Returns(400),                NotRetryable,  &[]),
    ("POST",    Memory, &[Status(503)],                                     &[Idempotent, Never],           1, Returns(503),                Exhausted,     &[]),
    ("POST",    Stream, &[AfterFirstFrame(503)],                                   &[Idempotent],                  1, Returns(503),                NotReplayable, &[]),
    ("PATCH",   Stream, &[Status(429)],                                     &[Idempotent, Own(2)],          2, Returns(429),                Exhausted,     &[H1]),
    ("PURGE",   Empty,  &[Status(503), Status(200)],                            &[Idempotent],                  2, Returns(200),                Success,       &[T1]),
    // An idempotency key that the server honours.
    ("POST",    Memory, &[Status(503), Status(200)],                            &[Keyed],                       2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Status(429), Status(200)],                            &[Keyed],                       2, Returns(200),                Success,       &[H1]),
    ("POST",    Memory, &[RetryAfter(503, "3"), Status(200)],                     &[Keyed],                       2, Returns(200),                Success,       &[asked(3_000..=3_050)]),
    ("POST",    Memory, &[Io(ConnectionReset), Status(200)],                &[Keyed],                       2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[NoResponse, Status(200)],                             &[Keyed, PerAttempt(90)],       2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Status(503), Status(200)],                            &[Keyed, CallersKey],           2, Returns(200),                Success,       &[T1]),
    ("POST",    Memory, &[Status(503)],                                     &[CallersKey],                  1, Returns(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Status(409)],                                     &[Keyed],                       1, Returns(409),                NotRetryable,  &[]),
    ("POST",    Memory, &[Status(503)],                                     &[Keyed, Never],                1, Returns(503),                Exhausted,     &[]),
    ("POST",    Stream, &[Status(503), Status(200)],                            &[Keyed],                       2, Returns(200),                Success,       &[T1]),
    ("POST",    Stream, &[AfterFirstFrame(503)],                                   &[Keyed],                       1, Returns(503),                NotReplayable, &[]),
    ("POST",    Large,  &[Status(503)],                                     &[Keyed],                       1, Returns(503),                NotReplayable, &[]),
    ("PATCH",   Memory, &[Status(503)],                                     &[Keyed],                       3, Returns(503),                Exhausted,     &[T1, T2]),
    ("PURGE",   Memory, &[Status(503), Status(200)],                            &[Keyed],                       2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(503), Status(200)],                            &[Keyed],                       2, Returns(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Status(503), Status(200)],                            &[Keyed, CallersKey],           2, Returns(200),                Success,       &[T1]),
    // A deadline in the request's extensions, and the earlier of two.
    ("GET",     Empty,  &[RetryAfter(503, "3")],                              &[Until(3_000)],                1, Returns(503),                Deadline,      &[]),
    ("GET",     Empty,  &[RetryAfter(503, "3"), Status(200)],                     &[Until(3_100)],                2, Returns(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Status(503)],                                     &[Until(50)],                   1, Returns(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Delayed(60, 503)],                               &[Until(100)],                  1, Returns(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Delayed(60, 200)],                               &[Until(50)],                   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[NoResponse],                                      &[Until(80), PerAttempt(90)],   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[RetryAfter(503, "3")],                              &[Until(3_000), Total(9_000)],  1, Returns(503),                Deadline,      &[]),
    ("GET",     Empty,  &[RetryAfter(503, "3")],                              &[Until(9_000), Total(3_000)],  1, Returns(503),                Deadline,      &[]),
    ("POST",    Memory, &[Refused],                                     &[Until(50)],                   1, Service(ConnectionRefused), Deadline,      &[]),
    // Custom backoffs, and no attempt after their end.
    ("GET",     Empty,  &[Status(503)],                                     &[Steps(&[1_000, 2_000]), Attempts(9)], 3, Returns(503),        Exhausted,     &[exactly(1_000), exactly(2_000)]),
    ("GET",     Empty,  &[Status(503)],                                     &[Steps(&[1_000, 2_000, 3_000])], 3, Returns(503),              Exhausted,     &[exactly(1_000), exactly(2_000)]),
    ("GET",     Empty,  &[Status(503)],                                     &[Steps(&[])],                  1, Returns(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[RetryAfter(503, "3")],                              &[Steps(&[])],                  1, Returns(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Status(503), Status(200)],                            &[Steps(&[0])],                 2, Returns(200),                Success,       &[exactly(0)]),
    ("GET",     Empty,  &[RetryAfter(503, "3"), Status(200)],                     &[Steps(&[1_000])],             2, Returns(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[RetryAfter(503, "1"), Status(200)],                     &[Steps(&[2_000])],             2, Returns(200),                Success,       &[exactly(2_000)]),
    ("GET",     Empty,  &[Status(503)],                                     &[Steps(&[3_000]), Total(3_000)], 1, Returns(503),              Deadline,      &[]),
    ("GET",     Empty,  &[Status(503)],                                     &[Steps(&[u64::MAX]), Total(3_000)], 1, Returns(503),           Deadline,      &[]),
    ("GET",     Empty,  &[Status(429)],                                     &[Steps(&[1])],                 3, Returns(429),                Exhausted,     &[H1, H2]),
    ("GET",     Empty,  &[Status(503)],                                     &[HotSteps(&[1])],              3, Returns(503),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Status(429)],                                     &[HotSteps(&[5, 6]), Attempts(9)], 3, Returns(429),             Exhausted,     &[hot(5), hot(6)]),
    ("GET",     Empty,  &[Status(429), Status(503), Status(429), Status(503), Status(200)], &[Steps(&[1, 2]), HotSteps(&[3, 4]), Attempts(5)], 5, Returns(200), Success,   &[hot(3), exactly(1), hot(4), exactly(2)]),
    // A budget: a retry costs 14, or 5 after a throttled response.
    ("GET",     Empty,  &[Status(503)],                                     &[Left(14)],                    2, Returns(503),                Budget,        &[T1]),
    ("GET",     Empty,  &[Status(503)],                                     &[Left(27)],                    2, Returns(503),                Budget,        &[T1]),
    ("GET",     Empty,  &[Status(503)],                                     &[Left(28)],                    3, Returns(503),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Status(503), Status(200)],                            &[Left(14)],                    2, Returns(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Status(429)],                                     &[Left(14)],                    3, Returns(429),                Exhausted,     &[H1, H2]),
    ("GET",     Empty,  &[Status(429)],                                     &[Left(14), Attempts(4)],       3, Returns(429),                Budget,        &[H1, H2]),
    ("GET",     Empty,  &[Status(429), Status(503)],                            &[Left(14)],                    2, Returns(503),                Budget,        &[H1]),
    ("GET",     Empty,  &[Io(ConnectionReset)],                         &[Left(14)],                    2, Service(ConnectionReset),   Budget,        &[T1]),
    ("POST",    Memory, &[Refused],                                     &[Left(14)],                    2, Service(ConnectionRefused), Budget,        &[T1]),
    ("PUT",     Large,  &[Status(503)],                                     &[Left(14)],                    1, Returns(503),                NotReplayable, &[]),
    ("GET",     Empty,  &[Status(503)],                                     &[NoBudget, Own(4)],            4, Returns(503),                Exhausted,     &[T1, T2, T3]),
];

#[tokio::test(start_paused = true)]
async fn retries_each_outcome_as_in_the_table() {
    for row in TABLE {
        for seed in 0..20 {
            check(row, seed).await;
        }
    }
}
