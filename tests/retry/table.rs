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
    ("GET",     Empty,  &[Is(200)],                                     &[],                            1, Status(200),                Success,       &[]),
    ("POST",    Memory, &[Is(201)],                                     &[],                            1, Status(201),                Success,       &[]),
    ("GET",     Empty,  &[Is(204)],                                     &[],                            1, Status(204),                Success,       &[]),
    ("GET",     Empty,  &[Is(301)],                                     &[],                            1, Status(301),                Success,       &[]),
    ("GET",     Empty,  &[Is(304)],                                     &[],                            1, Status(304),                Success,       &[]),
    // Statuses that are retried.
    ("GET",     Empty,  &[Is(408), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(429), Is(200)],                            &[],                            2, Status(200),                Success,       &[H1]),
    ("GET",     Empty,  &[Is(500), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(502), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(503), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(504), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(520), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(521), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(522), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(523), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(524), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(530), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(529), Is(200)],                            &[],                            2, Status(200),                Success,       &[H1]),
    // Statuses that are not retried.
    ("GET",     Empty,  &[Is(400)],                                     &[],                            1, Status(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(401)],                                     &[],                            1, Status(401),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(403)],                                     &[],                            1, Status(403),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(404)],                                     &[],                            1, Status(404),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(409)],                                     &[],                            1, Status(409),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(422)],                                     &[],                            1, Status(422),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(501)],                                     &[],                            1, Status(501),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(505)],                                     &[],                            1, Status(505),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(519)],                                     &[],                            1, Status(519),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(525)],                                     &[],                            1, Status(525),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(526)],                                     &[],                            1, Status(526),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(527)],                                     &[],                            1, Status(527),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(528)],                                     &[],                            1, Status(528),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(531)],                                     &[],                            1, Status(531),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(503), Is(404)],                            &[],                            2, Status(404),                NotRetryable,  &[T1]),
    ("GET",     Empty,  &[Asks(404, "1")],                              &[],                            1, Status(404),                NotRetryable,  &[]),
    // The other idempotent methods.
    ("HEAD",    Empty,  &[Is(503), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("OPTIONS", Empty,  &[Is(503), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("TRACE",   Empty,  &[Is(503), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Is(503), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("DELETE",  Empty,  &[Is(429), Is(200)],                            &[],                            2, Status(200),                Success,       &[H1]),
    // Requests that must not be processed twice.
    ("POST",    Memory, &[Is(408)],                                     &[],                            1, Status(408),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(429)],                                     &[],                            1, Status(429),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(500)],                                     &[],                            1, Status(500),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(503)],                                     &[],                            1, Status(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(504)],                                     &[],                            1, Status(504),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(520)],                                     &[],                            1, Status(520),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(529)],                                     &[],                            1, Status(529),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(530)],                                     &[],                            1, Status(530),                NotIdempotent, &[]),
    ("POST",    Memory, &[Asks(503, "1")],                              &[],                            1, Status(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Silent],                                      &[PerAttempt(90)],              1, Timeout,                    NotIdempotent, &[]),
    ("POST",    Memory, &[Io(ConnectionReset)],                         &[],                            1, Service(ConnectionReset),   NotIdempotent, &[]),
    ("POST",    Memory, &[Io(BrokenPipe)],                              &[],                            1, Service(BrokenPipe),        NotIdempotent, &[]),
    ("POST",    Memory, &[Io(UnexpectedEof)],                           &[],                            1, Service(UnexpectedEof),     NotIdempotent, &[]),
    ("PATCH",   Memory, &[Is(429)],                                     &[],                            1, Status(429),                NotIdempotent, &[]),
    ("PATCH",   Memory, &[Is(503)],                                     &[],                            1, Status(503),                NotIdempotent, &[]),
    ("PATCH",   Memory, &[Is(504)],                                     &[],                            1, Status(504),                NotIdempotent, &[]),
    ("PATCH",   Memory, &[Silent],                                      &[PerAttempt(90)],              1, Timeout,                    NotIdempotent, &[]),
    ("PURGE",   Empty,  &[Is(503)],                                     &[],                            1, Status(503),                NotIdempotent, &[]),
    ("get",     Empty,  &[Is(503)],                                     &[],                            1, Status(503),                NotIdempotent, &[]),
    // Not sent: any method. Maybe processed: idempotent requests.
    ("POST",    Memory, &[Refused, Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("PATCH",   Memory, &[Refused, Refused, Is(200)],                   &[],                            3, Status(200),                Success,       &[T1, T2]),
    ("POST",    Memory, &[Refused],                                     &[],                            3, Service(ConnectionRefused), Exhausted,     &[T1, T2]),
    ("POST",    Memory, &[Refused, Is(503)],                            &[],                            2, Status(503),                NotIdempotent, &[T1]),
    ("POST",    Memory, &[Refused, Io(ConnectionReset)],                &[],                            2, Service(ConnectionReset),   NotIdempotent, &[T1]),
    ("GET",     Empty,  &[Io(ConnectionReset), Is(200)],                &[],                            2, Status(200),                Success,       &[T1]),
    ("DELETE",  Empty,  &[Io(UnexpectedEof), Is(200)],                  &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Io(BrokenPipe)],                              &[],                            3, Service(BrokenPipe),        Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Silent, Is(200)],                             &[PerAttempt(90)],              2, Status(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Silent],                                      &[PerAttempt(90)],              3, Timeout,                    Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Io(ConnectionReset), Silent, Is(200)],        &[PerAttempt(90)],              3, Status(200),                Success,       &[T1, T2]),
    // The number of attempts.
    ("GET",     Empty,  &[Is(503)],                                     &[],                            3, Status(503),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Is(429)],                                     &[],                            3, Status(429),                Exhausted,     &[H1, H2]),
    ("GET",     Empty,  &[Is(503)],                                     &[Attempts(1)],                 1, Status(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Refused],                                     &[Attempts(1)],                 1, Service(ConnectionRefused), Exhausted,     &[]),
    ("GET",     Empty,  &[Is(200)],                                     &[Attempts(1)],                 1, Status(200),                Success,       &[]),
    ("GET",     Empty,  &[Is(503), Is(500), Is(502), Is(200)],          &[Attempts(4)],                 4, Status(200),                Success,       &[T1, T2, T3]),
    ("GET",     Empty,  &[Is(429), Is(503), Is(200)],                   &[],                            3, Status(200),                Success,       &[H1, T2]),
    ("GET",     Empty,  &[Is(503), Is(429), Is(200)],                   &[],                            3, Status(200),                Success,       &[T1, H2]),
    // Requested delays, which are never shortened.
    ("GET",     Empty,  &[Asks(503, "3"), Is(200)],                     &[],                            2, Status(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Asks(429, "3"), Is(200)],                     &[],                            2, Status(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[Asks(500, "3"), Is(200)],                     &[],                            2, Status(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[With(429, MS_1500), Is(200)],                 &[],                            2, Status(200),                Success,       &[asked(1_500..=2_000)]),
    ("GET",     Empty,  &[With(429, MS_1500_7), Is(200)],               &[],                            2, Status(200),                Success,       &[asked(1_501..=2_001)]),
    ("GET",     Empty,  &[With(503, MS_LIST), Is(200)],                 &[],                            2, Status(200),                Success,       &[asked(1_500..=1_550)]),
    ("GET",     Empty,  &[Asks(503, "1.5"), Is(200)],                   &[],                            2, Status(200),                Success,       &[asked(2_000..=2_050)]),
    ("GET",     Empty,  &[Asks(503, "3, 9"), Is(200)],                  &[],                            2, Status(200),                Success,       &[asked(9_000..=9_050)]),
    ("GET",     Empty,  &[With(503, LINES), Is(200)],                   &[],                            2, Status(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[Asks(529, "3"), Is(200)],                     &[],                            2, Status(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[Asks(524, "3"), Is(200)],                     &[],                            2, Status(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[With(503, X_MS_1500), Is(200)],               &[],                            2, Status(200),                Success,       &[asked(1_500..=1_550)]),
    ("GET",     Empty,  &[With(429, MS_700), Is(200)],                  &[],                            2, Status(200),                Success,       &[either(700..=1_200)]),
    ("GET",     Empty,  &[With(503, MS_1), Is(200)],                    &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Asks(503, "0"), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Asks(503, "soon"), Is(200)],                  &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Asks(503, "-3"), Is(200)],                    &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(503, IMF_IN_10), Is(200)],               &[],                            2, Status(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[With(503, RFC850_IN_10), Is(200)],            &[],                            2, Status(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[With(503, ASCTIME_IN_10), Is(200)],           &[],                            2, Status(200),                Success,       &[asked(10_000..=10_050)]),
    ("GET",     Empty,  &[With(503, IMF_PAST), Is(200)],                &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Asks(503, "Sun, 06 Nov 1994 08:49:47 GMT"), Is(200)], &[],                    2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Asks(429, "120"), Is(200)],                   &[],                            2, Status(200),                Success,       &[asked(120_000..=120_500)]),
    ("GET",     Empty,  &[Asks(503, "2"), Asks(503, "4"), Is(200)],     &[],                            3, Status(200),                Success,       &[asked(2_000..=2_050), asked(4_000..=4_100)]),
    // A requested delay that is too long: the response is returned at once.
    ("GET",     Empty,  &[Asks(429, "121")],                            &[],                            1, Status(429),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Asks(503, "6")],                              &[MaxAsk(5)],                   1, Status(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Asks(503, "5"), Is(200)],                     &[MaxAsk(5)],                   2, Status(200),                Success,       &[asked(5_000..=5_050)]),
    ("GET",     Empty,  &[Asks(503, "99999999999999999999")],           &[],                            1, Status(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Asks(503, "Fri, 31 Dec 9999 23:59:59 GMT")],  &[],                            1, Status(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Is(503), Asks(429, "121")],                   &[],                            2, Status(429),                RequestedDelayTooLong,  &[T1]),
    ("POST",    Memory, &[Asks(429, "121")],                            &[],                            1, Status(429),                NotIdempotent, &[]),
    // A delay beyond the deadline: the response is returned at once.
    ("GET",     Empty,  &[Asks(503, "3")],                              &[Total(3_000)],                1, Status(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Asks(503, "3"), Is(200)],                     &[Total(3_100)],                2, Status(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Is(503)],                                     &[Total(50)],                   1, Status(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Io(ConnectionReset)],                         &[Total(50)],                   1, Service(ConnectionReset),   Deadline,      &[]),
    ("GET",     Empty,  &[Silent],                                      &[Total(80)],                   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[Silent],                                      &[Total(80), PerAttempt(90)],   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[Is(503), Silent],                             &[Total(500), PerAttempt(900)], 2, OverDeadline,               Deadline,      &[T1]),
    // The body of 5 bytes.
    ("PUT",     Memory, &[Is(503), Is(200)],                            &[Replay(5)],                   2, Status(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Is(503)],                                     &[Replay(4)],                   1, Status(503),                NotReplayable, &[]),
    ("PUT",     Memory, &[Io(ConnectionReset)],                         &[Replay(4)],                   1, Service(ConnectionReset),   NotReplayable, &[]),
    ("PUT",     Memory, &[Is(200)],                                     &[Replay(0)],                   1, Status(200),                Success,       &[]),
    // Nothing of the body was read, so it is replayed at any size.
    ("POST",    Memory, &[Refused, Is(200)],                            &[Replay(0)],                   2, Status(200),                Success,       &[T1]),
    // The body: none, in memory, streamed or over the replay limit, and read whole, in part, not at all or still held.
    ("PUT",     Stream, &[Is(503), Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Io(ConnectionReset), Is(503), Is(200)],       &[],                            3, Status(200),                Success,       &[T1, T2]),
    ("PUT",     Stream, &[Silent, Is(200)],                             &[PerAttempt(90)],              2, Status(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Is(503), Is(200)],                            &[Replay(5)],                   2, Status(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Is(503)],                                     &[Replay(4)],                   1, Status(503),                NotReplayable, &[]),
    ("PUT",     Empty,  &[Is(503), Is(200)],                            &[Replay(0)],                   2, Status(200),                Success,       &[T1]),
    ("PUT",     Large,  &[Is(200)],                                     &[],                            1, Status(200),                Success,       &[]),
    ("PUT",     Large,  &[Is(503)],                                     &[],                            1, Status(503),                NotReplayable, &[]),
    ("PUT",     Large,  &[Io(BrokenPipe)],                              &[],                            1, Service(BrokenPipe),        NotReplayable, &[]),
    ("PUT",     Large,  &[Silent],                                      &[PerAttempt(90)],              1, Timeout,                    NotReplayable, &[]),
    ("PUT",     Large,  &[Asks(503, "3")],                              &[],                            1, Status(503),                NotReplayable, &[]),
    ("PUT",     Large,  &[Is(404)],                                     &[],                            1, Status(404),                NotRetryable,  &[]),
    ("PUT",     Large,  &[Is(503)],                                     &[Attempts(1)],                 1, Status(503),                Exhausted,     &[]),
    ("PUT",     Large,  &[Is(503), Is(200)],                            &[Replay(2_097_152)],           2, Status(200),                Success,       &[T1]),
    ("POST",    Large,  &[Is(503)],                                     &[],                            1, Status(503),                NotIdempotent, &[]),
    ("POST",    Large,  &[Refused, Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("PUT",     Flood,  &[Is(200)],                                     &[],                            1, Status(200),                Success,       &[]),
    ("PUT",     Flood,  &[Is(503)],                                     &[],                            1, Status(503),                NotReplayable, &[]),
    ("POST",    Flood,  &[Refused, Is(200)],                            &[],                            2, Status(200),                Success,       &[T1]),
    ("POST",    Flood,  &[Refused, Is(503)],                            &[],                            2, Status(503),                NotIdempotent, &[T1]),
    ("PUT",     Stream, &[Half(503)],                                   &[],                            1, Status(503),                NotReplayable, &[]),
    ("PUT",     Flood,  &[Half(503)],                                   &[],                            1, Status(503),                NotReplayable, &[]),
    ("POST",    Stream, &[Half(503)],                                   &[],                            1, Status(503),                NotIdempotent, &[]),
    ("PUT",     Memory, &[Half(503), Is(200)],                          &[],                            2, Status(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Early(503), Is(200)],                         &[],                            2, Status(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Early(503), Is(200)],                         &[],                            2, Status(200),                Success,       &[T1]),
    ("PUT",     Stream, &[Early(503), Half(503)],                       &[],                            2, Status(503),                NotReplayable, &[T1]),
    ("PUT",     Flood,  &[Early(503), Early(503), Is(200)],             &[],                            3, Status(200),                Success,       &[T1, T2]),
    ("POST",    Stream, &[Early(503)],                                  &[],                            1, Status(503),                NotIdempotent, &[]),
    ("PUT",     Memory, &[Keeps(503)],                                  &[],                            1, Status(503),                NotReplayable, &[]),
    ("PUT",     Stream, &[Keeps(503)],                                  &[],                            1, Status(503),                NotReplayable, &[]),
    ("GET",     Empty,  &[Keeps(503), Is(200)],                         &[],                            2, Status(200),                Success,       &[T1]),
    // Custom rules. The last one is evaluated first.
    ("GET",     Empty,  &[Is(409), Is(200)],                            &[RetryOn(409)],                2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(409)],                                     &[RetryOn(409)],                3, Status(409),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Is(202), Is(200)],                            &[RetryOn(202)],                2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Is(409)],                                     &[RetryOn(409)],                1, Status(409),                NotIdempotent, &[]),
    ("PUT",     Large,  &[Is(409)],                                     &[RetryOn(409)],                1, Status(409),                NotReplayable, &[]),
    ("GET",     Empty,  &[Is(500)],                                     &[NeverOn(500)],                1, Status(500),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(429)],                                     &[NeverOn(429)],                1, Status(429),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(500), Is(503)],                            &[NeverOn(503)],                2, Status(503),                NotRetryable,  &[T1]),
    ("GET",     Empty,  &[Is(409)],                                     &[RetryOn(409), NeverOn(409)],  1, Status(409),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(409), Is(200)],                            &[NeverOn(409), RetryOn(409)],  2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(403, SPENT)],                            &[],                            1, Status(403),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(403, SPENT), Is(200)],                   &[When(SPENT_403)],             2, Status(200),                Success,       &[H1]),
    ("GET",     Empty,  &[With(403, SPENT_FOR_3), Is(200)],             &[When(SPENT_403)],             2, Status(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[Is(403)],                                     &[When(SPENT_403)],             1, Status(403),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(503), Is(200)],                            &[When(SPENT_403)],             2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[With(403, SPENT)],                            &[When(SPENT_403)],             1, Status(403),                NotIdempotent, &[]),
    ("GET",     Empty,  &[Is(404)],                                     &[When(AGAIN)],                 3, Status(404),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Is(200)],                                     &[When(AGAIN)],                 3, Status(200),                Exhausted,     &[T1, T2]),
    ("POST",    Memory, &[Is(503)],                                     &[When(AGAIN)],                 1, Status(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(200)],                                     &[When(AGAIN)],                 1, Status(200),                NotIdempotent, &[]),
    ("POST",    Memory, &[Io(ConnectionReset)],                         &[When(AGAIN)],                 1, Service(ConnectionReset),   NotIdempotent, &[]),
    ("POST",    Memory, &[Silent],                                      &[When(AGAIN), PerAttempt(90)], 1, Timeout,                    NotIdempotent, &[]),
    ("POST",    Memory, &[Refused, Is(503)],                            &[When(AGAIN)],                 2, Status(503),                NotIdempotent, &[T1]),
    ("PUT",     Stream, &[Half(503)],                                   &[When(AGAIN)],                 1, Status(503),                NotReplayable, &[]),
    ("GET",     Empty,  &[Silent],                                      &[When(AGAIN), Total(80)],      1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[Asks(503, "121")],                            &[When(AGAIN)],                 1, Status(503),                RequestedDelayTooLong,  &[]),
    ("GET",     Empty,  &[Is(503)],                                     &[When(NO_MORE)],               1, Status(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[Refused],                                     &[When(NO_MORE)],               1, Service(ConnectionRefused), NotRetryable,  &[]),
    ("GET",     Empty,  &[Silent],                                      &[When(NO_MORE), PerAttempt(90)], 1, Timeout,                  NotRetryable,  &[]),
    ("GET",     Empty,  &[Is(503)],                                     &[When(WELL)],                  1, Status(503),                Success,       &[]),
    // A 101 is returned, whatever a rule decides.
    ("GET",     Empty,  &[Is(101)],                                     &[],                            1, Status(101),                Success,       &[]),
    ("GET",     Empty,  &[Asks(101, "1")],                              &[When(AGAIN)],                 1, Status(101),                Success,       &[]),
    ("GET",     Empty,  &[With(101, YES)],                              &[RetryOn(101)],                1, Status(101),                Success,       &[]),
    ("GET",     Empty,  &[Is(503), Is(101)],                            &[When(AGAIN)],                 2, Status(101),                Success,       &[T1]),
    // `x-should-retry` on a 4xx or 5xx.
    ("GET",     Empty,  &[With(400, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(404, YES)],                              &[],                            3, Status(404),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[With(429, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[H1]),
    ("GET",     Empty,  &[With(500, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(501, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(505, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(409, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(529, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[H1]),
    ("GET",     Empty,  &[With(529, NO)],                               &[],                            1, Status(529),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(524, NO)],                               &[],                            1, Status(524),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(503, YES), Is(200)],                     &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(400, NO)],                               &[],                            1, Status(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(429, NO)],                               &[],                            1, Status(429),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(500, NO)],                               &[],                            1, Status(500),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(503, NO)],                               &[],                            1, Status(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(200, YES)],                              &[],                            1, Status(200),                Success,       &[]),
    ("GET",     Empty,  &[With(302, YES)],                              &[],                            1, Status(302),                Success,       &[]),
    ("GET",     Empty,  &[With(200, NO)],                               &[],                            1, Status(200),                Success,       &[]),
    ("GET",     Empty,  &[With(400, YES_TWICE), Is(200)],               &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(400, YES_AND_NO)],                       &[],                            1, Status(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(503, YES_AND_NO), Is(200)],              &[],                            2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[With(400, PERHAPS)],                          &[],                            1, Status(400),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(503, PERHAPS), Is(200)],                 &[],                            2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[With(503, YES)],                              &[],                            1, Status(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[With(503, NO)],                               &[Keyed],                       1, Status(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(503, YES)],                              &[NeverOn(503)],                1, Status(503),                NotRetryable,  &[]),
    ("GET",     Empty,  &[With(409, NO), Is(200)],                      &[RetryOn(409)],                2, Status(200),                Success,       &[T1]),
    // Overrides in the request's extensions.
    ("GET",     Empty,  &[Is(503)],                                     &[Never],                       1, Status(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Is(200)],                                     &[Never],                       1, Status(200),                Success,       &[]),
    ("POST",    Memory, &[Refused],                                     &[Never],                       1, Service(ConnectionRefused), Exhausted,     &[]),
    ("GET",     Empty,  &[Is(503)],                                     &[Own(5)],                      5, Status(503),                Exhausted,     &[T1, T2, T3, T4]),
    ("GET",     Empty,  &[Is(503)],                                     &[Own(2), Attempts(5)],         2, Status(503),                Exhausted,     &[T1]),
    ("GET",     Empty,  &[Is(503)],                                     &[Own(2), Attempts(1)],         2, Status(503),                Exhausted,     &[T1]),
    ("POST",    Memory, &[Is(503)],                                     &[Own(5)],                      1, Status(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(503), Is(200)],                            &[Idempotent],                  2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Silent, Is(200)],                             &[Idempotent, PerAttempt(90)],  2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Is(400)],                                     &[Idempotent],                  1, Status(400),                NotRetryable,  &[]),
    ("POST",    Memory, &[Is(503)],                                     &[Idempotent, Never],           1, Status(503),                Exhausted,     &[]),
    ("POST",    Stream, &[Half(503)],                                   &[Idempotent],                  1, Status(503),                NotReplayable, &[]),
    ("PATCH",   Stream, &[Is(429)],                                     &[Idempotent, Own(2)],          2, Status(429),                Exhausted,     &[H1]),
    ("PURGE",   Empty,  &[Is(503), Is(200)],                            &[Idempotent],                  2, Status(200),                Success,       &[T1]),
    // An idempotency key that the server honours.
    ("POST",    Memory, &[Is(503), Is(200)],                            &[Keyed],                       2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Is(429), Is(200)],                            &[Keyed],                       2, Status(200),                Success,       &[H1]),
    ("POST",    Memory, &[Asks(503, "3"), Is(200)],                     &[Keyed],                       2, Status(200),                Success,       &[asked(3_000..=3_050)]),
    ("POST",    Memory, &[Io(ConnectionReset), Is(200)],                &[Keyed],                       2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Silent, Is(200)],                             &[Keyed, PerAttempt(90)],       2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Is(503), Is(200)],                            &[Keyed, CallersKey],           2, Status(200),                Success,       &[T1]),
    ("POST",    Memory, &[Is(503)],                                     &[CallersKey],                  1, Status(503),                NotIdempotent, &[]),
    ("POST",    Memory, &[Is(409)],                                     &[Keyed],                       1, Status(409),                NotRetryable,  &[]),
    ("POST",    Memory, &[Is(503)],                                     &[Keyed, Never],                1, Status(503),                Exhausted,     &[]),
    ("POST",    Stream, &[Is(503), Is(200)],                            &[Keyed],                       2, Status(200),                Success,       &[T1]),
    ("POST",    Stream, &[Half(503)],                                   &[Keyed],                       1, Status(503),                NotReplayable, &[]),
    ("POST",    Large,  &[Is(503)],                                     &[Keyed],                       1, Status(503),                NotReplayable, &[]),
    ("PATCH",   Memory, &[Is(503)],                                     &[Keyed],                       3, Status(503),                Exhausted,     &[T1, T2]),
    ("PURGE",   Memory, &[Is(503), Is(200)],                            &[Keyed],                       2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(503), Is(200)],                            &[Keyed],                       2, Status(200),                Success,       &[T1]),
    ("PUT",     Memory, &[Is(503), Is(200)],                            &[Keyed, CallersKey],           2, Status(200),                Success,       &[T1]),
    // A deadline in the request's extensions, and the earlier of two.
    ("GET",     Empty,  &[Asks(503, "3")],                              &[Until(3_000)],                1, Status(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Asks(503, "3"), Is(200)],                     &[Until(3_100)],                2, Status(200),                Success,       &[asked(3_000..=3_050)]),
    ("GET",     Empty,  &[Is(503)],                                     &[Until(50)],                   1, Status(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Late(60, 503)],                               &[Until(100)],                  1, Status(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Late(60, 200)],                               &[Until(50)],                   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[Silent],                                      &[Until(80), PerAttempt(90)],   1, OverDeadline,               Deadline,      &[]),
    ("GET",     Empty,  &[Asks(503, "3")],                              &[Until(3_000), Total(9_000)],  1, Status(503),                Deadline,      &[]),
    ("GET",     Empty,  &[Asks(503, "3")],                              &[Until(9_000), Total(3_000)],  1, Status(503),                Deadline,      &[]),
    ("POST",    Memory, &[Refused],                                     &[Until(50)],                   1, Service(ConnectionRefused), Deadline,      &[]),
    // Custom backoffs, and no attempt after their end.
    ("GET",     Empty,  &[Is(503)],                                     &[Steps(&[1_000, 2_000]), Attempts(9)], 3, Status(503),        Exhausted,     &[exactly(1_000), exactly(2_000)]),
    ("GET",     Empty,  &[Is(503)],                                     &[Steps(&[1_000, 2_000, 3_000])], 3, Status(503),              Exhausted,     &[exactly(1_000), exactly(2_000)]),
    ("GET",     Empty,  &[Is(503)],                                     &[Steps(&[])],                  1, Status(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Asks(503, "3")],                              &[Steps(&[])],                  1, Status(503),                Exhausted,     &[]),
    ("GET",     Empty,  &[Is(503), Is(200)],                            &[Steps(&[0])],                 2, Status(200),                Success,       &[exactly(0)]),
    ("GET",     Empty,  &[Asks(503, "3"), Is(200)],                     &[Steps(&[1_000])],             2, Status(200),                Success,       &[asked(3_000..=3_500)]),
    ("GET",     Empty,  &[Asks(503, "1"), Is(200)],                     &[Steps(&[2_000])],             2, Status(200),                Success,       &[exactly(2_000)]),
    ("GET",     Empty,  &[Is(503)],                                     &[Steps(&[3_000]), Total(3_000)], 1, Status(503),              Deadline,      &[]),
    ("GET",     Empty,  &[Is(503)],                                     &[Steps(&[u64::MAX]), Total(3_000)], 1, Status(503),           Deadline,      &[]),
    ("GET",     Empty,  &[Is(429)],                                     &[Steps(&[1])],                 3, Status(429),                Exhausted,     &[H1, H2]),
    ("GET",     Empty,  &[Is(503)],                                     &[HotSteps(&[1])],              3, Status(503),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Is(429)],                                     &[HotSteps(&[5, 6]), Attempts(9)], 3, Status(429),             Exhausted,     &[hot(5), hot(6)]),
    ("GET",     Empty,  &[Is(429), Is(503), Is(429), Is(503), Is(200)], &[Steps(&[1, 2]), HotSteps(&[3, 4]), Attempts(5)], 5, Status(200), Success,   &[hot(3), exactly(1), hot(4), exactly(2)]),
    // A budget: a retry costs 14, or 5 after a throttled response.
    ("GET",     Empty,  &[Is(503)],                                     &[Left(14)],                    2, Status(503),                Budget,        &[T1]),
    ("GET",     Empty,  &[Is(503)],                                     &[Left(27)],                    2, Status(503),                Budget,        &[T1]),
    ("GET",     Empty,  &[Is(503)],                                     &[Left(28)],                    3, Status(503),                Exhausted,     &[T1, T2]),
    ("GET",     Empty,  &[Is(503), Is(200)],                            &[Left(14)],                    2, Status(200),                Success,       &[T1]),
    ("GET",     Empty,  &[Is(429)],                                     &[Left(14)],                    3, Status(429),                Exhausted,     &[H1, H2]),
    ("GET",     Empty,  &[Is(429)],                                     &[Left(14), Attempts(4)],       3, Status(429),                Budget,        &[H1, H2]),
    ("GET",     Empty,  &[Is(429), Is(503)],                            &[Left(14)],                    2, Status(503),                Budget,        &[H1]),
    ("GET",     Empty,  &[Io(ConnectionReset)],                         &[Left(14)],                    2, Service(ConnectionReset),   Budget,        &[T1]),
    ("POST",    Memory, &[Refused],                                     &[Left(14)],                    2, Service(ConnectionRefused), Budget,        &[T1]),
    ("PUT",     Large,  &[Is(503)],                                     &[Left(14)],                    1, Status(503),                NotReplayable, &[]),
    ("GET",     Empty,  &[Is(503)],                                     &[NoBudget, Own(4)],            4, Status(503),                Exhausted,     &[T1, T2, T3]),
];

#[tokio::test(start_paused = true)]
async fn retries_each_outcome_as_in_the_table() {
    for row in TABLE {
        for seed in 0..20 {
            check(row, seed).await;
        }
    }
}
