//! What is sent again, how often, after how long.

use std::{
    io::{self, ErrorKind::*},
    ops::RangeInclusive,
    time::Duration,
};

use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Report,
    call::Ended::{self, *},
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

use super::{
    DATE, URI,
    probe::{
        Answer::{self, *},
        Probe, cause, millis, request, secs,
    },
};

/// Another setting than the default.
#[derive(Debug, Clone, Copy)]
enum Set {
    Attempts(u32),
    /// Seconds.
    MaxAsk(u64),
    /// Bytes; the body has 5.
    Replay(usize),
    /// Milliseconds.
    Total(u64),
    PerAttempt(u64),
}
use Set::*;

/// What comes out in the end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Out {
    Status(u16),
    Timeout,
    OverDeadline,
    Service(io::ErrorKind),
}
use Out::*;

/// Bounds of the back-offs, in milliseconds: the first and the second retry, transient and throttled.
const T1: RangeInclusive<u64> = 50..=100;
const T2: RangeInclusive<u64> = 100..=200;
const T3: RangeInclusive<u64> = 200..=400;
const H1: RangeInclusive<u64> = 500..=1_000;
const H2: RangeInclusive<u64> = 1_000..=2_000;

type Row =
    (&'static str, &'static [Answer], &'static [Set], usize, Out, Ended, &'static [RangeInclusive<u64>]);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    // method, outcomes in turn,                           settings,     attempts, what comes out,   ended,        delays
    // Nothing to retry.
    ("GET",     &[Is(200)],                                  &[],              1, Status(200),       Success,       &[]),
    ("POST",    &[Is(201)],                                  &[],              1, Status(201),       Success,       &[]),
    ("GET",     &[Is(204)],                                  &[],              1, Status(204),       Success,       &[]),
    ("GET",     &[Is(301)],                                  &[],              1, Status(301),       Success,       &[]),
    ("GET",     &[Is(304)],                                  &[],              1, Status(304),       Success,       &[]),
    // Statuses that pass.
    ("GET",     &[Is(408), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("GET",     &[Is(429), Is(200)],                         &[],              2, Status(200),       Success,       &[H1]),
    ("GET",     &[Is(500), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("GET",     &[Is(502), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("GET",     &[Is(503), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("GET",     &[Is(504), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    // Statuses that don't.
    ("GET",     &[Is(400)],                                  &[],              1, Status(400),       NotRetryable,  &[]),
    ("GET",     &[Is(401)],                                  &[],              1, Status(401),       NotRetryable,  &[]),
    ("GET",     &[Is(403)],                                  &[],              1, Status(403),       NotRetryable,  &[]),
    ("GET",     &[Is(404)],                                  &[],              1, Status(404),       NotRetryable,  &[]),
    ("GET",     &[Is(409)],                                  &[],              1, Status(409),       NotRetryable,  &[]),
    ("GET",     &[Is(422)],                                  &[],              1, Status(422),       NotRetryable,  &[]),
    ("GET",     &[Is(501)],                                  &[],              1, Status(501),       NotRetryable,  &[]),
    ("GET",     &[Is(505)],                                  &[],              1, Status(505),       NotRetryable,  &[]),
    ("GET",     &[Is(503), Is(404)],                         &[],              2, Status(404),       NotRetryable,  &[T1]),
    ("GET",     &[With(404, &[("retry-after", "1")])],       &[],              1, Status(404),       NotRetryable,  &[]),
    // The other idempotent methods.
    ("HEAD",    &[Is(503), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("OPTIONS", &[Is(503), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("TRACE",   &[Is(503), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("PUT",     &[Is(503), Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("DELETE",  &[Is(429), Is(200)],                         &[],              2, Status(200),       Success,       &[H1]),
    // Never twice.
    ("POST",    &[Is(408)],                                  &[],              1, Status(408),       NotIdempotent, &[]),
    ("POST",    &[Is(429)],                                  &[],              1, Status(429),       NotIdempotent, &[]),
    ("POST",    &[Is(500)],                                  &[],              1, Status(500),       NotIdempotent, &[]),
    ("POST",    &[Is(503)],                                  &[],              1, Status(503),       NotIdempotent, &[]),
    ("POST",    &[Is(504)],                                  &[],              1, Status(504),       NotIdempotent, &[]),
    ("POST",    &[With(503, &[("retry-after", "1")])],       &[],              1, Status(503),       NotIdempotent, &[]),
    ("POST",    &[Silent],                                   &[PerAttempt(90)], 1, Timeout,          NotIdempotent, &[]),
    ("POST",    &[Io(ConnectionReset)],                      &[],              1, Service(ConnectionReset), NotIdempotent, &[]),
    ("POST",    &[Io(BrokenPipe)],                           &[],              1, Service(BrokenPipe), NotIdempotent, &[]),
    ("POST",    &[Io(UnexpectedEof)],                        &[],              1, Service(UnexpectedEof), NotIdempotent, &[]),
    ("PATCH",   &[Is(429)],                                  &[],              1, Status(429),       NotIdempotent, &[]),
    ("PATCH",   &[Is(503)],                                  &[],              1, Status(503),       NotIdempotent, &[]),
    ("PATCH",   &[Is(504)],                                  &[],              1, Status(504),       NotIdempotent, &[]),
    ("PATCH",   &[Silent],                                   &[PerAttempt(90)], 1, Timeout,          NotIdempotent, &[]),
    ("PURGE",   &[Is(503)],                                  &[],              1, Status(503),       NotIdempotent, &[]),
    ("get",     &[Is(503)],                                  &[],              1, Status(503),       NotIdempotent, &[]),
    // Unsent: any method. Maybe processed: idempotent ones.
    ("POST",    &[Refused, Is(200)],                         &[],              2, Status(200),       Success,       &[T1]),
    ("PATCH",   &[Refused, Refused, Is(200)],                &[],              3, Status(200),       Success,       &[T1, T2]),
    ("POST",    &[Refused],                                  &[],              3, Service(ConnectionRefused), Exhausted, &[T1, T2]),
    ("POST",    &[Refused, Is(503)],                         &[],              2, Status(503),       NotIdempotent, &[T1]),
    ("POST",    &[Refused, Io(ConnectionReset)],             &[],              2, Service(ConnectionReset), NotIdempotent, &[T1]),
    ("GET",     &[Io(ConnectionReset), Is(200)],             &[],              2, Status(200),       Success,       &[T1]),
    ("DELETE",  &[Io(UnexpectedEof), Is(200)],               &[],              2, Status(200),       Success,       &[T1]),
    ("GET",     &[Io(BrokenPipe)],                           &[],              3, Service(BrokenPipe), Exhausted,   &[T1, T2]),
    ("GET",     &[Silent, Is(200)],                          &[PerAttempt(90)], 2, Status(200),      Success,       &[T1]),
    ("PUT",     &[Silent],                                   &[PerAttempt(90)], 3, Timeout,          Exhausted,     &[T1, T2]),
    ("GET",     &[Io(ConnectionReset), Silent, Is(200)],     &[PerAttempt(90)], 3, Status(200),      Success,       &[T1, T2]),
    // How often.
    ("GET",     &[Is(503)],                                  &[],              3, Status(503),       Exhausted,     &[T1, T2]),
    ("GET",     &[Is(429)],                                  &[],              3, Status(429),       Exhausted,     &[H1, H2]),
    ("GET",     &[Is(503)],                                  &[Attempts(1)],   1, Status(503),       Exhausted,     &[]),
    ("GET",     &[Refused],                                  &[Attempts(1)],   1, Service(ConnectionRefused), Exhausted, &[]),
    ("GET",     &[Is(200)],                                  &[Attempts(1)],   1, Status(200),       Success,       &[]),
    ("GET",     &[Is(503), Is(500), Is(502), Is(200)],       &[Attempts(4)],   4, Status(200),       Success,       &[T1, T2, T3]),
    ("GET",     &[Is(429), Is(503), Is(200)],                &[],              3, Status(200),       Success,       &[H1, T2]),
    ("GET",     &[Is(503), Is(429), Is(200)],                &[],              3, Status(200),       Success,       &[T1, H2]),
    // What the server asks for, and only ever more.
    ("GET",     &[With(503, &[("retry-after", "3")]), Is(200)],      &[],      2, Status(200),       Success,       &[3_000..=3_050]),
    ("GET",     &[With(429, &[("retry-after", "3")]), Is(200)],      &[],      2, Status(200),       Success,       &[3_000..=3_500]),
    ("GET",     &[With(500, &[("retry-after", "3")]), Is(200)],      &[],      2, Status(200),       Success,       &[3_000..=3_050]),
    ("GET",     &[With(429, &[("retry-after-ms", "1500")]), Is(200)], &[],     2, Status(200),       Success,       &[1_500..=2_000]),
    ("GET",     &[With(503, &[("x-ms-retry-after-ms", "1500")]), Is(200)], &[], 2, Status(200),      Success,       &[1_500..=1_550]),
    ("GET",     &[With(429, &[("retry-after-ms", "700")]), Is(200)], &[],      2, Status(200),       Success,       &[700..=1_200]),
    ("GET",     &[With(503, &[("retry-after-ms", "1")]), Is(200)],   &[],      2, Status(200),       Success,       &[T1]),
    ("GET",     &[With(503, &[("retry-after", "0")]), Is(200)],      &[],      2, Status(200),       Success,       &[T1]),
    ("GET",     &[With(503, &[("retry-after", "soon")]), Is(200)],   &[],      2, Status(200),       Success,       &[T1]),
    ("GET",     &[With(503, &[("retry-after", "-3")]), Is(200)],     &[],      2, Status(200),       Success,       &[T1]),
    ("GET",     &[With(503, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")]), Is(200)],  &[], 2, Status(200), Success, &[10_000..=10_050]),
    ("GET",     &[With(503, &[DATE, ("retry-after", "Sunday, 06-Nov-94 08:49:47 GMT")]), Is(200)], &[], 2, Status(200), Success, &[10_000..=10_050]),
    ("GET",     &[With(503, &[DATE, ("retry-after", "Sun Nov  6 08:49:47 1994")]), Is(200)],       &[], 2, Status(200), Success, &[10_000..=10_050]),
    ("GET",     &[With(503, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:49:36 GMT")]), Is(200)],  &[], 2, Status(200), Success, &[T1]),
    ("GET",     &[With(503, &[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")]), Is(200)],        &[], 2, Status(200), Success, &[T1]),
    ("GET",     &[With(429, &[("retry-after", "120")]), Is(200)],    &[],      2, Status(200),       Success,       &[120_000..=120_500]),
    ("GET",     &[With(503, &[("retry-after", "2")]), With(503, &[("retry-after", "4")]), Is(200)], &[], 3, Status(200), Success, &[2_000..=2_050, 4_000..=4_100]),
    // Asked for too much: at once, with the answer.
    ("GET",     &[With(429, &[("retry-after", "121")])],     &[],              1, Status(429),       AskedTooLong,  &[]),
    ("GET",     &[With(503, &[("retry-after", "6")])],       &[MaxAsk(5)],     1, Status(503),       AskedTooLong,  &[]),
    ("GET",     &[With(503, &[("retry-after", "5")]), Is(200)], &[MaxAsk(5)],  2, Status(200),       Success,       &[5_000..=5_050]),
    ("GET",     &[With(503, &[("retry-after", "99999999999999999999")])], &[], 1, Status(503),       AskedTooLong,  &[]),
    ("GET",     &[With(503, &[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")])], &[], 1, Status(503), AskedTooLong, &[]),
    ("GET",     &[Is(503), With(429, &[("retry-after", "121")])], &[],         2, Status(429),       AskedTooLong,  &[T1]),
    ("POST",    &[With(429, &[("retry-after", "121")])],     &[],              1, Status(429),       NotIdempotent, &[]),
    // Not within the deadline: at once.
    ("GET",     &[With(503, &[("retry-after", "3")])],       &[Total(3_000)],  1, Status(503),       Deadline,      &[]),
    ("GET",     &[With(503, &[("retry-after", "3")]), Is(200)], &[Total(3_100)], 2, Status(200),     Success,       &[3_000..=3_050]),
    ("GET",     &[Is(503)],                                  &[Total(50)],     1, Status(503),       Deadline,      &[]),
    ("GET",     &[Io(ConnectionReset)],                      &[Total(50)],     1, Service(ConnectionReset), Deadline, &[]),
    ("GET",     &[Silent],                                   &[Total(80)],     1, OverDeadline,      Deadline,      &[]),
    ("GET",     &[Silent],                                   &[Total(80), PerAttempt(90)], 1, OverDeadline, Deadline, &[]),
    ("GET",     &[Is(503), Silent],                          &[Total(500), PerAttempt(900)], 2, OverDeadline, Deadline, &[T1]),
    // The body of 5 bytes.
    ("PUT",     &[Is(503), Is(200)],                         &[Replay(5)],     2, Status(200),       Success,       &[T1]),
    ("PUT",     &[Is(503)],                                  &[Replay(4)],     1, Status(503),       NotReplayable, &[]),
    ("PUT",     &[Io(ConnectionReset)],                      &[Replay(4)],     1, Service(ConnectionReset), NotReplayable, &[]),
    ("PUT",     &[Is(200)],                                  &[Replay(0)],     1, Status(200),       Success,       &[]),
    // Nothing was read of it, so it goes again whatever its size.
    ("POST",    &[Refused, Is(200)],                         &[Replay(0)],     2, Status(200),       Success,       &[T1]),
];

#[tokio::test(start_paused = true)]
async fn each_outcome_is_retried_as_the_table_says() {
    for row in TABLE {
        for seed in 0..20 {
            check(row, seed).await;
        }
    }
}

async fn check(row: &Row, seed: u64) {
    let &(method, answers, settings, attempts, expected, ended, delays) = row;
    let (mut retry, mut total, mut per_attempt) = (RetryLayer::new().with_seed(seed), None, Duration::MAX);
    for set in settings {
        match *set {
            Attempts(most) => retry = retry.with_max_attempts(most).unwrap(),
            MaxAsk(longest) => retry = retry.with_max_retry_after(secs(longest)),
            Replay(limit) => retry = retry.with_replay_limit(limit),
            Total(limit) => total = Some(TimeoutLayer::total(millis(limit)).unwrap()),
            PerAttempt(limit) => per_attempt = millis(limit),
        }
    }
    let probe = Probe::new(answers.iter().copied());
    let inner = TimeoutLayer::per_attempt(per_attempt).unwrap().layer(probe.clone());
    let retry = retry.layer(inner);
    let start = Instant::now();
    let result = match total {
        Some(total) => total.layer(retry).oneshot(request(method, URI)).await,
        None => retry.oneshot(request(method, URI)).await,
    };
    let elapsed = start.elapsed();

    let (out, report) = match &result {
        Ok(response) => (Status(response.status().as_u16()), response.extensions().get::<Report>()),
        Err(error) if error.is_deadline() => (OverDeadline, error.report()),
        Err(error) if error.is_timeout() => (Timeout, error.report()),
        Err(error) => (Service(cause::<io::Error>(error).unwrap().kind()), error.report()),
    };
    let report = report.expect("no report");
    let made = report.attempts();
    assert_eq!((out, report.ended()), (expected, Some(ended)), "{row:?}");
    assert_eq!((probe.calls(), report.attempt_count()), (attempts, attempts), "{row:?}");
    assert!(made.iter().map(|attempt| attempt.number()).eq(1..=attempts as u32), "{row:?}");

    let planned: Vec<_> = made.iter().map(|attempt| attempt.delay()).collect();
    assert_eq!(planned.iter().flatten().count(), delays.len(), "{row:?}");
    assert_eq!(planned.last(), Some(&None), "no delay after the last: {row:?}");
    for (delay, bounds) in planned.iter().flatten().zip(delays) {
        let bounds = millis(*bounds.start())..=millis(*bounds.end());
        assert!(bounds.contains(delay), "seed {seed}: {delay:?} not in {bounds:?}: {row:?}");
    }
    for (pair, seen) in made.windows(2).zip(&probe.seen()[1..]) {
        let slept = pair[1].started() - pair[0].ended().unwrap();
        let planned = pair[0].delay().unwrap();
        assert!(slept >= planned && slept < planned + millis(2), "{slept:?}, not {planned:?}: {row:?}");
        assert_eq!(seen.at - start, pair[1].started());
    }
    if delays.is_empty() && !answers.iter().any(|answer| matches!(answer, Silent)) {
        assert_eq!(elapsed, Duration::ZERO, "{row:?}");
    }
    for seen in probe.seen() {
        let body = seen.body.map(|(body, _)| body);
        assert!(body.is_none_or(|body| body == "hello"), "{row:?}");
    }
}
