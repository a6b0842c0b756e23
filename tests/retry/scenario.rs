//! Runs one row of the table and compares the results.

use std::{collections::HashSet, convert::Infallible, io, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    Report,
    call::{Deadline, RequestHead},
    retry::{AttemptResult, Budget, IdempotencyKey, RetryDecision, RetryLayer, RetryOverride},
    timeout::TimeoutLayer,
};

use super::{
    URI, rule,
    support::{Scripted, ScriptedService, cause, millis, secs},
    table::Row,
};

/// The body of the request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Content {
    Empty,
    /// `hello`, in one piece of a known length.
    Memory,
    /// `hello`, in two pieces of unknown length.
    Stream,
    /// In memory, one byte over the replay limit.
    Large,
    /// The same in pieces of unknown length.
    Flood,
}

pub(crate) type Rule = fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision>;

/// A setting that differs from the default.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Set {
    Attempts(u32),
    /// Seconds.
    MaxAsk(u64),
    /// Bytes; a small body has 5.
    Replay(usize),
    /// Milliseconds.
    Total(u64),
    PerAttempt(u64),
    /// The deadline in the request's extensions, in milliseconds from its start.
    Until(u64),
    RetryOn(u16),
    NeverOn(u16),
    When(Rule),
    /// The override in the request's extensions.
    Never,
    Own(u32),
    Idempotent,
    /// Headers an idempotency key, which the server honours.
    Keyed,
    CallersKey,
    /// The transient backoffs and the throttled ones, in milliseconds.
    Steps(&'static [u64]),
    HotSteps(&'static [u64]),
    /// The capacity of the budget.
    Left(u32),
    NoBudget,
}

/// The result of the call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Out {
    Returns(u16),
    Timeout,
    OverDeadline,
    Service(io::ErrorKind),
}
use Out::*;

static LARGE: [u8; 1024 * 1024 + 1] = [b'x'; 1024 * 1024 + 1];

impl Content {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Empty => b"",
            Self::Memory | Self::Stream => b"hello",
            Self::Large | Self::Flood => &LARGE,
        }
    }

    fn body(self) -> BoxBody<Bytes, Infallible> {
        let piece = match self {
            Self::Empty | Self::Memory | Self::Large => {
                return Full::new(Bytes::from_static(self.bytes())).boxed();
            }
            Self::Stream => 3,
            Self::Flood => 64 * 1024,
        };
        let pieces = self.bytes().chunks(piece).map(|piece| Ok(Frame::data(Bytes::from_static(piece))));
        StreamBody::new(stream::iter(pieces)).boxed()
    }
}

fn status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap()
}

pub(crate) async fn check(row: &Row, seed: u64) {
    let &(method, content, answers, settings, attempts, expected, ended, delays) = row;
    let start = Instant::now();
    let (mut retry, mut total, mut per_attempt) = (RetryLayer::new().with_seed(seed), None, Duration::MAX);
    let mut own = RetryOverride::new();
    let mut request = Request::builder().method(method).uri(URI).body(content.body()).unwrap();
    for set in settings {
        match *set {
            Set::Attempts(most) => retry = retry.with_max_attempts(most).unwrap(),
            Set::MaxAsk(longest) => retry = retry.with_max_retry_after(secs(longest)),
            Set::Replay(limit) => retry = retry.with_replay_limit(limit),
            Set::Total(limit) => total = Some(TimeoutLayer::total(millis(limit)).unwrap()),
            Set::PerAttempt(limit) => per_attempt = millis(limit),
            Set::Until(left) => drop(request.extensions_mut().insert(Deadline(start + millis(left)))),
            Set::RetryOn(on) => retry = retry.retry_on(status(on)),
            Set::NeverOn(on) => retry = retry.never_on(status(on)),
            Set::When(decide) => retry = retry.with_classify(rule(decide)),
            Set::Never => own = own.without_retries(),
            Set::Own(most) => own = own.with_max_attempts(most).unwrap(),
            Set::Idempotent => own = own.with_idempotent(),
            Set::Keyed => retry = retry.with_honoured_idempotency_key(IdempotencyKey::bare()),
            Set::CallersKey => {
                request.headers_mut().insert("idempotency-key", HeaderValue::from_static("mine"));
            }
            Set::Steps(steps) => retry = retry.with_custom_backoff(|| steps.iter().copied().map(millis)),
            Set::HotSteps(steps) => {
                retry = retry.with_custom_throttled_backoff(|| steps.iter().copied().map(millis));
            }
            Set::Left(left) => retry = retry.with_budget(Budget::new().with_capacity(left).unwrap()),
            Set::NoBudget => retry = retry.without_budget(),
        }
    }
    request.extensions_mut().insert(own);
    let probe = ScriptedService::new(answers.iter().copied());
    let inner = TimeoutLayer::per_attempt(per_attempt).unwrap().layer(probe.clone());
    let retry = retry.layer(inner);
    let result = match total {
        Some(total) => total.layer(retry).oneshot(request).await,
        None => retry.oneshot(request).await,
    };
    let elapsed = start.elapsed();

    let (out, report) = match &result {
        Ok(response) => (Returns(response.status().as_u16()), response.extensions().get::<Report>()),
        Err(error) if error.is_deadline() => (OverDeadline, error.report()),
        Err(error) if error.is_timeout() => (Timeout, error.report()),
        Err(error) => (Service(cause::<io::Error>(error).unwrap().kind()), error.report()),
    };
    let report = report.expect("no report");
    let made = report.attempts();
    assert_eq!((out, report.stop_reason()), (expected, Some(ended)), "{row:?}");
    assert_eq!((probe.calls(), report.attempt_count()), (attempts, attempts), "{row:?}");
    assert!(made.iter().map(|attempt| attempt.number).eq(1..=attempts as u32), "{row:?}");

    let planned: Vec<_> = made.iter().map(|attempt| attempt.delay.zip(attempt.delay_reason)).collect();
    assert_eq!(planned.iter().flatten().count(), delays.len(), "{row:?}");
    assert_eq!(planned.last(), Some(&None), "no delay after the last: {row:?}");
    for ((delay, reason), (reasons, bounds)) in planned.iter().flatten().zip(delays) {
        let bounds = millis(*bounds.start())..=millis(*bounds.end());
        assert!(bounds.contains(delay), "seed {seed}: {delay:?} not in {bounds:?}: {row:?}");
        assert!(reasons.contains(reason), "seed {seed}: {reason:?}: {row:?}");
    }
    for (pair, seen) in made.windows(2).zip(&probe.seen()[1..]) {
        let slept = pair[1].started - pair[0].ended.unwrap();
        let planned = pair[0].delay.unwrap();
        assert!(slept >= planned && slept < planned + millis(2), "{slept:?}, not {planned:?}: {row:?}");
        assert_eq!(seen.at - start, pair[1].started);
    }
    if delays.is_empty()
        && !answers.iter().any(|answer| matches!(answer, Scripted::NoResponse | Scripted::Delayed(..)))
    {
        assert_eq!(elapsed, Duration::ZERO, "{row:?}");
    }
    let mut keys = HashSet::new();
    for seen in probe.seen() {
        assert!(seen.body.is_none_or(|body| body == content.bytes()), "{method} {answers:?} {settings:?}");
        keys.insert(seen.head.headers.get("idempotency-key").cloned());
    }
    assert_eq!(keys.len(), 1, "all attempts have the same key or none: {row:?}");
    let keyed = settings.iter().any(|set| match set {
        Set::CallersKey => true,
        Set::Keyed => !["GET", "PUT"].contains(&method),
        _ => false,
    });
    assert_eq!(!keys.contains(&None), keyed, "{row:?}");
}
