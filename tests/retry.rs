//! The retry layer, over doubles and on paused time. Also runs the limit and preset layers over the probe.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod probe;

use std::{
    cell::Cell,
    collections::HashSet,
    convert::Infallible,
    error::Error as _,
    future::Future,
    io::{self, ErrorKind::*},
    ops::RangeInclusive,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use probe::{
    Answer::{self, *},
    Broken, Content, Probe, cause, get, keeps_the_contract, millis, request, secs,
};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey, ExponentialBackoff, Jitter, Quota, Report,
    body::ReplayBody,
    call::{
        Call,
        Ended::{self, *},
        Outcome,
    },
    limit::{RateLimitLayer, TokenBucket},
    preset,
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

const URI: &str = "https://api.example.com/v1";

#[tokio::test(start_paused = true)]
async fn only_what_was_polled_ready_is_called() {
    keeps_the_contract(RetryLayer::new(), URI).await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_layer_calls_only_what_was_polled_ready() {
    keeps_the_contract(RateLimitLayer::new(TokenBucket::unmetered()), URI).await;
    keeps_the_contract(RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100).unwrap())), URI).await;
}

#[tokio::test(start_paused = true)]
async fn the_preset_layer_calls_only_what_was_polled_ready() {
    for preset in [preset::currency_rates(URI), preset::email_delivery(URI), preset::realtime_messaging(URI)]
    {
        let layer = preset.unwrap().with_api_key(ApiKey::new("s3cret").unwrap()).layer().unwrap();
        keeps_the_contract(layer, URI).await;
    }
}

#[tokio::test]
#[should_panic(expected = "called without having been polled ready")]
async fn the_probe_itself_minds_a_call_that_was_not_polled_ready() {
    let mut ready = Probe::new([Is(200)]);
    std::future::poll_fn(|cx| Service::<Request<Content>>::poll_ready(&mut ready, cx)).await.unwrap();
    let _ = ready.clone().call(get(URI)).await;
}

// ---- the table: what is sent again, how often, after how long

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

const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");

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

// ---- never early

/// How long after the failed answer the next attempt came.
async fn waited_for(headers: &'static [(&'static str, &'static str)], status: u16, seed: u64) -> Duration {
    let probe = Probe::new([With(status, headers), Is(200)]);
    let service = RetryLayer::new().with_seed(seed).layer(probe.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = probe.seen();
    seen[1].at - seen[0].at
}

#[tokio::test(start_paused = true)]
async fn no_attempt_leaves_before_the_time_asked_for_whatever_the_seed() {
    type Asked = (u64, &'static [(&'static str, &'static str)]);
    let asks: [Asked; 5] = [
        (1_000, &[("retry-after", "1")]),
        (7_000, &[("retry-after", "7")]),
        (120_000, &[("retry-after", "120")]),
        (1_234, &[("retry-after-ms", "1234")]),
        (60_000, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT")]),
    ];
    for (asked, headers) in asks {
        for seed in 0..200 {
            // The timer's tick is a millisecond: start anywhere in it.
            tokio::time::advance(Duration::from_micros(seed * 37 % 1_000)).await;
            for status in [429, 503] {
                let waited = waited_for(headers, status, seed).await;
                assert!(waited >= millis(asked), "{status}: {waited:?} after an ask of {asked} ms");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_only_adds_to_what_the_server_asked_for() {
    let mut waits = Vec::new();
    for seed in 0..200 {
        waits.push(waited_for(&[("retry-after", "3")], 429, seed).await);
    }
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!((secs(3)..millis(3_020)).contains(least), "{least:?}");
    assert!((millis(3_480)..millis(3_502)).contains(most), "{most:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_while_it_is_drained_delays_no_attempt() {
    let bodies = Recorded::new(Kind::Stalled);
    let starts = Rc::new(Cell::new(Vec::new()));
    let service = failing_first(&bodies, &[("retry-after", "3")], &starts);
    RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    let starts = starts.take();
    let waited = starts[1] - starts[0];
    assert!((secs(3)..millis(3_052)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_date_without_the_servers_own_is_read_against_the_wall_clock_as_the_test_moves_it() {
    #[allow(clippy::disallowed_methods, reason = "the wall clock is what the test is about")]
    let now = SystemTime::now();
    tokio::time::advance(secs(3_600)).await;
    let until = HeaderValue::try_from(http_date(now + secs(3_600 + 30))).unwrap();
    let calls = Rc::new(Cell::new(0));
    let service = service_fn(|_: Request<ReplayBody<Content>>| {
        let (until, status) = (until.clone(), if calls.replace(calls.get() + 1) == 0 { 503 } else { 200 });
        async move { Response::builder().status(status).header("retry-after", until).body(Content::default()) }
    });
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    let asked = report(&response).attempts()[0].asked().unwrap();
    // A date has no fraction of a second, and the machine's own clock runs on.
    assert!((secs(25)..=secs(30)).contains(&asked), "{asked:?}");
}

/// Of this century: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let mut year = 1970;
    let leap = |year| u64::from(year % 4 == 0);
    while days >= 365 + leap(year) {
        days -= 365 + leap(year);
        year += 1;
    }
    let mut left = days;
    for (name, length) in [
        ("Jan", 31),
        ("Feb", 28 + leap(year)),
        ("Mar", 31),
        ("Apr", 30),
        ("May", 31),
        ("Jun", 30),
        ("Jul", 31),
        ("Aug", 31),
        ("Sep", 30),
        ("Oct", 31),
        ("Nov", 30),
        ("Dec", 31),
    ] {
        if left < length {
            let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
            return format!("{weekday}, {:02} {name} {year} {hour:02}:{minute:02}:{second:02} GMT", left + 1);
        }
        left -= length;
    }
    panic!("a year has twelve months");
}

#[tokio::test(start_paused = true)]
async fn an_ask_of_years_is_waited_out_when_it_is_allowed() {
    // Longer than tokio's timer wheel spans, which is 2.2 years.
    let probe = Probe::new([With(503, &[("retry-after", "100000000")]), Is(200)]);
    let service = RetryLayer::new().with_max_retry_after(Duration::MAX).layer(probe.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = probe.seen();
    let waited = seen[1].at - seen[0].at;
    assert!((secs(100_000_000)..secs(100_000_001)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn of_an_ask_that_is_too_long_the_answer_is_in_hand_at_once() {
    let start = Instant::now();
    let probe = Probe::new([With(429, &[("retry-after", "3600"), ("x-why", "quota")])]);
    let response = RetryLayer::new().layer(probe).oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let report = report(&response).clone();
    assert_eq!(report.ended(), Some(AskedTooLong));
    assert_eq!(report.attempts()[0].asked(), Some(secs(3600)));
    assert_eq!((response.status().as_u16(), &response.headers()["x-why"]), (429, &"quota".parse().unwrap()));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "answer");
}

// ---- jitter

/// Fails each call's first attempt, and then answers.
fn fails_each_call_once(
    status: u16,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<Content>, Error = Infallible, Future: Send>
+ Clone
+ Send {
    service_fn(move |request: Request<ReplayBody<Content>>| async move {
        let mut response = Response::new(Content::default());
        if request.extensions().get::<Call>().unwrap().attempt() == 1 {
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
        }
        Ok(response)
    })
}

async fn a_thousand_delays(layer: RetryLayer, status: u16) -> Vec<Duration> {
    let calls = (0..1_000).map(|_| {
        // Each by a service of its own, as tasks of a program have it.
        let service = layer.clone().without_budget().layer(fails_each_call_once(status));
        tokio::spawn(async move {
            report(&service.oneshot(get(URI)).await.unwrap()).attempts()[0].delay().unwrap()
        })
    });
    futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_calls_that_fail_together_come_back_apart() {
    let second = secs(1);
    let always_at_the_cap = ExponentialBackoff::new(second, second).unwrap();
    for (layer, status, from, to) in [
        (RetryLayer::new(), 503, 50, 100),
        (RetryLayer::new(), 429, 500, 1_000),
        (RetryLayer::new().with_backoff(always_at_the_cap), 503, 500, 1_000),
        (RetryLayer::new().with_seed(1), 503, 50, 100),
    ] {
        let delays = a_thousand_delays(layer, status).await;
        let distinct: HashSet<_> = delays.iter().collect();
        assert!(distinct.len() >= 900, "{} distinct delays", distinct.len());
        // And over the whole of their range: some in each tenth of it, about a tenth.
        let mut tenths = [0; 10];
        for delay in &delays {
            assert!((millis(from)..=millis(to)).contains(delay), "{delay:?}");
            let share = (delay.as_secs_f64() - millis(from).as_secs_f64()) / millis(to - from).as_secs_f64();
            tenths[((share * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_calls_that_were_told_the_same_moment_come_back_apart() {
    let service = service_fn(|request: Request<ReplayBody<Content>>| async move {
        let first = request.extensions().get::<Call>().unwrap().attempt() == 1;
        Response::builder()
            .status(if first { 429 } else { 200 })
            .header("retry-after", "5")
            .body(Content::default())
    });
    let service = RetryLayer::new().without_budget().layer(service);
    let calls = (0..1_000).map(|_| service.clone().oneshot(get(URI)));
    let delays: HashSet<_> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .map(|response| report(&response.unwrap()).attempts()[0].delay())
        .collect();
    assert!(delays.len() >= 900, "{}", delays.len());
}

#[tokio::test(start_paused = true)]
async fn a_seed_repeats_and_two_layers_without_one_differ() {
    let delays = |layer: RetryLayer| async move {
        let service = layer.with_max_attempts(6).unwrap().layer(Probe::new([Is(503)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        report(&response).attempts().iter().filter_map(|attempt| attempt.delay()).collect::<Vec<_>>()
    };
    let first = delays(RetryLayer::new().with_seed(7)).await;
    assert_eq!(first.len(), 5);
    assert_eq!(first, delays(RetryLayer::new().with_seed(7)).await);
    assert_ne!(first, delays(RetryLayer::new().with_seed(8)).await);
    assert_ne!(delays(RetryLayer::new()).await, delays(RetryLayer::new()).await);
}

#[tokio::test(start_paused = true)]
async fn without_jitter_the_delays_double_up_to_the_cap() {
    let backoff = ExponentialBackoff::new(secs(1), secs(5)).unwrap().with_jitter(Jitter::none());
    let layer = RetryLayer::new().with_backoff(backoff).with_max_attempts(6).unwrap();
    let start = Instant::now();
    let probe = Probe::new([Is(503)]);
    layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let at: Vec<_> = probe.seen().iter().map(|seen| (seen.at - start).as_secs()).collect();
    assert_eq!(at, [0, 1, 3, 7, 12, 17]);
}

#[test]
fn no_attempts_at_all_are_refused() {
    let error = RetryLayer::new().with_max_attempts(0).unwrap_err();
    assert_eq!((error.field(), error.value()), ("max attempts", "0"));
}

// ---- the failed answer's body

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// So many frames of 1 KiB.
    Short(u32),
    /// Always another 8 KiB at once.
    Endless,
    /// 10 bytes each 10 ms.
    Dripping,
    /// Nothing, ever.
    Stalled,
    /// 1 KiB, and then an error.
    Failing,
}

/// What became of the bodies of one kind: bytes read, and when each was dropped.
#[derive(Clone)]
struct Recorded {
    kind: Kind,
    read: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    dropped: Arc<Mutex<Vec<Instant>>>,
}

struct RecordedBody {
    frames: u32,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
    recorded: Recorded,
}

impl Recorded {
    fn new(kind: Kind) -> Self {
        Self { kind, read: Arc::default(), ended: Arc::default(), dropped: Arc::default() }
    }

    fn body(&self) -> RecordedBody {
        RecordedBody { frames: 0, timer: None, recorded: self.clone() }
    }

    fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn drops(&self) -> Vec<Instant> {
        self.dropped.lock().unwrap().clone()
    }
}

impl Body for RecordedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let bytes = match this.recorded.kind {
            Kind::Stalled => return Poll::Pending,
            Kind::Short(frames) if this.frames == frames => {
                this.recorded.ended.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(None);
            }
            Kind::Failing if this.frames == 1 => {
                return Poll::Ready(Some(Err(io::Error::other("the body broke"))));
            }
            Kind::Short(_) | Kind::Failing => 1_024,
            Kind::Endless => 8_192,
            Kind::Dripping => {
                let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(millis(10))));
                std::task::ready!(timer.as_mut().poll(cx));
                this.timer = None;
                10
            }
        };
        this.frames += 1;
        this.recorded.read.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; bytes as usize])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        self.recorded.dropped.lock().unwrap().push(Instant::now());
    }
}

/// Answers 503 with a recorded body, then 200, and notes when it was called.
fn failing_first(
    bodies: &Recorded,
    headers: &'static [(&'static str, &'static str)],
    starts: &Rc<Cell<Vec<Instant>>>,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<RecordedBody>, Error = http::Error> + Clone
{
    let (bodies, starts) = (bodies.clone(), Rc::clone(starts));
    service_fn(move |_: Request<ReplayBody<Content>>| {
        let mut all = starts.take();
        all.push(Instant::now());
        let mut response = Response::builder().status(if all.len() == 1 { 503 } else { 200 });
        starts.set(all);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        std::future::ready(response.body(bodies.body()))
    })
}

/// When the failed body was dropped and the next attempt made, counted from the failed answer.
async fn drained(kind: Kind) -> (Duration, Duration, Recorded) {
    let (bodies, starts) = (Recorded::new(kind), Rc::new(Cell::new(Vec::new())));
    let service = failing_first(&bodies, &[("retry-after", "1")], &starts);
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(response.status(), 200);
    let (starts, drops) = (starts.take(), bodies.drops());
    assert_eq!(drops.len(), 1, "of two bodies the second is the caller's");
    (drops[0] - starts[0], starts[1] - starts[0], bodies)
}

#[tokio::test(start_paused = true)]
async fn a_failed_body_is_read_to_its_end_and_dropped_before_the_sleep() {
    for frames in [0, 1, 40, 64] {
        let (dropped, next, bodies) = drained(Kind::Short(frames)).await;
        assert_eq!(dropped, Duration::ZERO, "{frames} frames");
        assert_eq!(bodies.read(), u64::from(frames) * 1_024);
        assert_eq!(bodies.ended.load(Ordering::Relaxed), 1, "the end was seen");
        assert!(next >= secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn of_an_endless_body_64_kib_are_read_and_one_frame() {
    let (dropped, _, bodies) = drained(Kind::Endless).await;
    assert_eq!(dropped, Duration::ZERO);
    assert!((64 * 1_024..=72 * 1_024).contains(&bodies.read()), "{}", bodies.read());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_or_drips_is_dropped_after_100_ms() {
    for kind in [Kind::Stalled, Kind::Dripping] {
        let (dropped, next, bodies) = drained(kind).await;
        assert!((millis(100)..=millis(101)).contains(&dropped), "{kind:?}: {dropped:?}");
        assert!(next >= secs(1) && bodies.read() <= 100, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_while_it_is_drained_is_dropped_and_the_call_goes_on() {
    let (dropped, next, _) = drained(Kind::Failing).await;
    assert_eq!(dropped, Duration::ZERO);
    assert!(next >= secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_body_is_not_held_longer_than_the_back_off() {
    let (bodies, starts) = (Recorded::new(Kind::Stalled), Rc::new(Cell::new(Vec::new())));
    let backoff = ExponentialBackoff::new(millis(20), secs(1)).unwrap();
    let service = failing_first(&bodies, &[], &starts);
    RetryLayer::new().with_backoff(backoff).layer(service).oneshot(get(URI)).await.unwrap();
    let starts = starts.take();
    assert!(starts[1] - starts[0] <= millis(21), "{:?}", starts[1] - starts[0]);
    assert!(bodies.drops()[0] <= starts[1], "dropped before the next attempt");
}

#[tokio::test(start_paused = true)]
async fn the_last_answers_body_is_the_callers_untouched() {
    let bodies = Recorded::new(Kind::Short(3));
    let service = {
        let bodies = bodies.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            std::future::ready(Response::builder().status(503).body(bodies.body()))
        })
    };
    let layer = RetryLayer::new().with_max_attempts(1).unwrap();
    let response = layer.layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!((bodies.read(), bodies.drops().len()), (0, 0));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 3 * 1_024);
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_passes_untouched_and_ends_the_call() {
    #[derive(Debug, Clone, PartialEq)]
    struct Upgrade;
    let bodies = Recorded::new(Kind::Stalled);
    let service = {
        let bodies = bodies.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            let response = Response::builder().status(101).header("retry-after", "1").extension(Upgrade);
            std::future::ready(response.body(bodies.body()))
        })
    };
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.extensions().get(), Some(&Upgrade));
    assert!(bodies.drops().is_empty());
    assert_eq!((report(&response).ended(), report(&response).attempt_count()), (Some(Success), 1));
}

// ---- the request, again

#[tokio::test(start_paused = true)]
async fn every_attempt_carries_the_same_head() {
    #[derive(Clone)]
    struct Marked;
    let probe = Probe::new([Is(503), Io(ConnectionReset), Is(200)]);
    let mut request = request("PUT", "https://api.example.com/v1?q=1");
    request.headers_mut().append("x-many", HeaderValue::from_static("a"));
    request.headers_mut().append("x-many", HeaderValue::from_static("b"));
    *request.version_mut() = Version::HTTP_2;
    request.extensions_mut().insert(Marked);
    RetryLayer::new().layer(probe.clone()).oneshot(request).await.unwrap();
    let seen = probe.seen();
    assert_eq!(seen.len(), 3);
    for seen in &seen {
        assert_eq!((&seen.head.method, seen.head.version), (&Method::PUT, Version::HTTP_2));
        assert_eq!(seen.head.uri, "https://api.example.com/v1?q=1");
        assert!(seen.head.headers.get_all("x-many").iter().eq(["a", "b"]));
        assert_eq!(seen.head.headers.len(), 2, "and no header more");
        assert!(seen.head.extensions.get::<Marked>().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_reads_the_number_of_the_attempt() {
    let probe = Probe::new([Is(503), Is(503), Is(200)]);
    RetryLayer::new().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let numbers: Vec<_> = probe.seen().into_iter().map(|seen| seen.attempt).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_body_is_sent_again_whole_with_its_trailers() {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("42"))]);
    let frames = [
        Frame::data(Bytes::from_static(b"one ")),
        Frame::data(Bytes::from_static(b"two ")),
        Frame::data(Bytes::from(vec![b'x'; 10_000])),
        Frame::trailers(trailers.clone()),
    ];
    // Not `Clone`, in pieces, with pauses between them.
    let stream = stream::iter(frames.map(Ok::<_, Infallible>)).then(|frame| async {
        tokio::time::sleep(millis(5)).await;
        frame
    });
    let body = StreamBody::new(stream.boxed());
    let probe = Probe::new([Is(503), Io(ConnectionReset), Is(200)]);
    let request = Request::put(URI).body(body).unwrap();
    RetryLayer::new().layer(probe.clone()).oneshot(request).await.unwrap();
    let whole = [b"one two ".as_slice(), &[b'x'; 10_000]].concat();
    assert_eq!(probe.calls(), 3);
    for seen in probe.seen() {
        assert_eq!(seen.body, Some((whole.clone().into(), Some(trailers.clone()))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_grows_over_the_replay_limit_is_sent_whole_and_once() {
    for (limit, attempts, ended) in [(30, 2, Success), (29, 1, NotReplayable)] {
        let frames =
            [[1; 10], [2; 10], [3; 10]].map(|data| Ok::<_, Infallible>(Frame::data(Bytes::from_owner(data))));
        let probe = Probe::new([Is(503), Is(200)]);
        let request = Request::put(URI).body(StreamBody::new(stream::iter(frames))).unwrap();
        let layer = RetryLayer::new().with_replay_limit(limit);
        let response = layer.layer(probe.clone()).oneshot(request).await.unwrap();
        assert_eq!((probe.calls(), report(&response).ended()), (attempts, Some(ended)));
        assert_eq!(probe.seen()[0].body.as_ref().unwrap().0.len(), 30);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_which_a_part_was_read_is_not_sent_again() {
    let calls = Rc::new(Cell::new(0));
    let service = service_fn(|request: Request<_>| {
        calls.set(calls.get() + 1);
        async {
            let mut body: ReplayBody<StreamBody<_>> = request.into_body();
            body.frame().await;
            Response::builder().status(503).body(Content::default())
        }
    });
    let frames = [1, 2].map(|byte| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![byte]))));
    let request = Request::put(URI).body(StreamBody::new(stream::iter(frames))).unwrap();
    let response = RetryLayer::new().layer(service).oneshot(request).await.unwrap();
    assert_eq!((calls.get(), report(&response).ended()), (1, Some(NotReplayable)));
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_that_read_nothing_leaves_the_body_to_be_sent() {
    let bodies = Rc::new(Cell::new(Vec::new()));
    let service = service_fn(|request: Request<ReplayBody<Content>>| {
        let bodies = Rc::clone(&bodies);
        async move {
            let early = request.extensions().get::<Call>().unwrap().attempt() == 1;
            if !early {
                bodies.set(request.into_body().collect().await.unwrap().to_bytes().to_vec());
            }
            Response::builder().status(if early { 503 } else { 200 }).body(Content::default())
        }
    });
    let response = RetryLayer::new().layer(service).oneshot(request("PUT", URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), bodies.take().as_slice()), (200, b"hello".as_slice()));
}

// ---- the report and the error

#[tokio::test(start_paused = true)]
async fn the_report_of_a_success_is_complete() {
    let probe =
        Probe::new([With(429, &[("retry-after", "2")]), Io(ConnectionReset), Refused, Silent, Late(30, 200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(TimeoutLayer::per_attempt(secs(1)).unwrap())
        .service(probe.clone());
    let start = Instant::now();
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = report(&response);
    assert_eq!((report.ended(), report.attempt_count()), (Some(Success), 5));
    assert_eq!((report.request_id(), report.waited()), (None, Duration::ZERO));
    let attempts = report.attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome().unwrap()).collect();
    let answer = |status| Outcome::Answer(StatusCode::from_u16(status).unwrap());
    assert_eq!(outcomes, [answer(429), Outcome::Failed, Outcome::NotSent, Outcome::Timeout, answer(200)]);
    let asked: Vec<_> = attempts.iter().map(|attempt| attempt.asked()).collect();
    assert_eq!(asked, [Some(secs(2)), None, None, None, None]);
    let took: Vec<_> = attempts.iter().map(|attempt| attempt.ended().unwrap() - attempt.started()).collect();
    assert_eq!(took, [millis(0), millis(0), millis(0), secs(1), millis(30)]);
    for (index, (attempt, seen)) in attempts.iter().zip(probe.seen()).enumerate() {
        assert_eq!(attempt.number(), index as u32 + 1);
        assert_eq!(attempt.started(), seen.at - start);
        assert_eq!(attempt.delay().is_some(), index < 4);
        assert_eq!(attempt.waited(), Duration::ZERO);
    }
    assert_eq!(attempts[4].ended(), Some(start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn the_report_of_a_failure_is_complete_and_the_source_is_the_inner_error() {
    let probe = Probe::new([With(503, &[("retry-after", "2")]), Io(ConnectionReset), Io(BrokenPipe)]);
    let error = RetryLayer::new().layer(probe).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_timeout() && !error.is_auth());
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), BrokenPipe, "the last attempt's error");
    let report = error.report().unwrap();
    assert_eq!((report.ended(), report.attempt_count()), (Some(Exhausted), 3));
    let attempts = report.attempts();
    assert_eq!(attempts[0].asked(), Some(secs(2)));
    assert_eq!(attempts[1].outcome(), Some(Outcome::Failed));
    assert_eq!(attempts[2].outcome(), Some(Outcome::Failed));
    assert!(attempts[0].delay().is_some() && attempts[1].delay().is_some());
    assert_eq!(attempts[2].delay(), None);
    assert!(attempts.iter().all(|attempt| attempt.ended() >= Some(attempt.started())));
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
    // Nobody here knows what `Outer` says of the request, so its cause is no proof that it was not sent.
    let error = RetryLayer::new().layer(service).oneshot(request("POST", URI)).await.unwrap_err();
    let outer = error.source().unwrap().downcast_ref::<Outer>().unwrap();
    assert_eq!(outer.0.kind(), ConnectionRefused);
    assert!(cause::<io::Error>(&error).is_some());
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.ended()), (1, Some(NotIdempotent)));
    assert_eq!(report.attempts()[0].outcome(), Some(Outcome::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_limiter_is_not_tried_again() {
    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap());
    let probe = Probe::new([Is(503)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(probe.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(50)), "{error:?}");
    let report = error.report().unwrap();
    assert_eq!((probe.calls(), report.ended()), (1, Some(NotRetryable)));
    assert_eq!(report.attempts()[1].outcome(), Some(Outcome::Refused));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_pays_the_limiter_and_its_wait_is_in_the_report() {
    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket))
        .service(Probe::new([Is(503), Is(200)]));
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempts = report(&response).attempts();
    assert_eq!(attempts[0].waited(), Duration::ZERO);
    assert!((secs(59)..=secs(61)).contains(&attempts[1].waited()), "{:?}", attempts[1].waited());
    assert_eq!(report(&response).waited(), attempts[1].waited());
}

#[tokio::test(start_paused = true)]
async fn a_poll_ready_that_fails_sent_nothing_so_any_request_goes_again_with_its_body() {
    for method in ["PUT", "POST"] {
        let error = RetryLayer::new().layer(Probe::broken()).oneshot(request(method, URI)).await.unwrap_err();
        assert_eq!(cause(&error), Some(&Broken));
        let report = error.report().unwrap();
        assert_eq!((report.ended(), report.attempt_count()), (Some(Exhausted), 3), "{method}");
        assert!(report.attempts().iter().all(|attempt| attempt.outcome() == Some(Outcome::NotSent)));
    }
}

// ---- what a call holds while it sleeps

#[tokio::test(start_paused = true)]
async fn dropping_the_call_in_its_back_off_leaves_nothing_running() {
    let probe = Probe::new([Is(503)]);
    let mut call = task::spawn(RetryLayer::new().layer(probe.clone()).oneshot(get(URI)));
    assert_pending!(call.poll());
    assert_eq!(probe.calls(), 1, "the first attempt has failed");
    assert!(probe.instances() > 1);
    drop(call);
    assert_eq!(probe.instances(), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "no task was spawned");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(probe.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_future_wakes_once_for_each_back_off_and_not_in_between() {
    let mut call = task::spawn(RetryLayer::new().layer(Probe::new([Is(429), Is(200)])).oneshot(get(URI)));
    assert_pending!(call.poll());
    // The drained body is one frame in memory; after it the sleep alone is left.
    while call.is_woken() {
        assert_pending!(call.poll());
    }
    tokio::time::advance(millis(490)).await;
    assert!(!call.is_woken());
    tokio::time::advance(millis(515)).await;
    assert!(call.is_woken());
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_its_back_off_holds_no_place_of_a_concurrency_limit() {
    let probe = Probe::new([With(503, &[("retry-after", "60")]), Is(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(tower::limit::ConcurrencyLimitLayer::new(1))
        .service(probe.clone());
    let start = Instant::now();
    let mut sleeping = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(sleeping.poll());
    assert_eq!(probe.calls(), 1);
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(sleeping.await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn the_mock_sees_one_request_at_a_time_and_readiness_asked_for_before_each() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_layer::<Request<ReplayBody<Content>>, Response<Content>, _>(
            RetryLayer::new().with_seed(1),
        );
    handle.allow(0);
    assert!(service.poll_ready::<Request<Content>>().is_ready(), "the retry layer is ready at once");
    let mut call = task::spawn(service.call(get(URI)));
    assert_pending!(call.poll());
    assert!(handle.poll_request().is_pending(), "the mock gives no readiness yet");
    handle.allow(1);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let (_, first) = handle.next_request().await.unwrap();
    first.send_response(Response::builder().status(503).body(Content::default()).unwrap());
    assert_pending!(call.poll());
    tokio::time::advance(millis(105)).await;
    assert_pending!(call.poll());
    handle.allow(1);
    assert_pending!(call.poll());
    let (second, answer) = handle.next_request().await.unwrap();
    assert_eq!(second.extensions().get::<Call>().unwrap().attempt(), 2);
    drop(second); // it holds the body, which goes again once the attempt has let go of it
    answer.send_error(io::Error::from(BrokenPipe));
    assert_pending!(call.poll());
    tokio::time::advance(millis(205)).await;
    handle.allow(1);
    assert_pending!(call.poll());
    let (_, third) = handle.next_request().await.unwrap();
    third.send_response(Response::new(Content::default()));
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn without_a_failure_no_runtime_is_needed_and_nothing_slept() {
    let outside = std::thread::spawn(|| {
        let mut call = task::spawn(RetryLayer::new().layer(Probe::new([Is(404)])).oneshot(get(URI)));
        assert_eq!(assert_ready_ok!(call.poll()).status(), 404);
    });
    outside.join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn debug_shows_neither_head_nor_body() {
    let mut request = request("PUT", "https://api.example.com/v1?key=s3cret");
    request.headers_mut().insert("x-key", HeaderValue::from_static("s3cret"));
    *request.body_mut() = Full::from("s3cret");
    let mut service = RetryLayer::new().layer(Probe::new([Is(503)]));
    let mut call = task::spawn(service.call(request));
    assert_pending!(call.poll());
    let shown = format!("{:?} {service:?} {:?}", call, RetryLayer::new());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("attempts: 1"), "{shown}");
}

fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().expect("no report in the answer")
}
