//! Makes the call that a row of the decision table describes, and compares the result with the row.

use std::io;

use CallResult::*;
use http_body_util::{BodyExt, Full, combinators::BoxBody};

use super::{decision_table::Row, *};

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

/// Classifies an attempt, or returns `None` to use the default classifier.
pub(crate) type Decide = fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision>;

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
    WithoutBudget,
}

/// The result of a call in the decision table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CallResult {
    /// The call returns a response with this status.
    Returns(u16),
    /// The call returns an error because its last attempt timed out.
    Timeout,
    DeadlineExceeded,
    /// The call returns the I/O error of the inner service.
    IoError(io::ErrorKind),
}

static LARGE: [u8; 1024 * 1024 + 1] = [b'x'; 1024 * 1024 + 1];

impl RequestBody {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Empty => b"",
            Self::Buffered | Self::Streamed => b"hello",
            Self::LargeBuffered | Self::LargeStreamed => &LARGE,
        }
    }

    fn stream(self) -> BoxBody<Bytes, Infallible> {
        let frame_length = match self {
            Self::Empty | Self::Buffered | Self::LargeBuffered => {
                return Full::new(Bytes::from_static(self.bytes())).boxed();
            }
            Self::Streamed => 3,
            Self::LargeStreamed => 64 * 1024,
        };
        let frames = self.bytes().chunks(frame_length).map(|data| Ok(Frame::data(Bytes::from_static(data))));
        StreamBody::new(stream::iter(frames)).boxed()
    }
}

fn status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap()
}

/// Makes the call that `row` describes. Asserts the call's result, attempts, delays and requests. `seed` determines the
/// jitter of the backoff.
pub(crate) async fn check(row: &Row<'_>, seed: u64) {
    let &(method, body, responses, settings, attempts, expected, stop_reason, delays) = row;
    let start = Instant::now();
    let (mut retry, mut total_timeout, mut attempt_timeout) =
        (RetryLayer::new().with_seed(seed), None, Duration::MAX);
    let mut overrides = RetryOverride::new();
    let mut request = Request::builder().method(method).uri(URI).body(body.stream()).unwrap();
    for setting in settings {
        match *setting {
            Setting::MaxAttempts(max) => retry = retry.with_max_attempts(max).unwrap(),
            Setting::MaxRetryAfter(max) => retry = retry.with_max_retry_after(secs(max)),
            Setting::ReplayLimit(limit) => retry = retry.with_replay_limit(limit),
            Setting::TotalTimeout(limit) => {
                total_timeout = Some(TotalTimeoutLayer::new(millis(limit)).unwrap())
            }
            Setting::AttemptTimeout(limit) => attempt_timeout = millis(limit),
            Setting::RequestDeadline(after) => {
                request.extensions_mut().insert(Deadline(start + millis(after)));
            }
            Setting::RetryOn(code) => retry = retry.retry_on([status(code)]),
            Setting::NeverOn(code) => retry = retry.never_on([status(code)]),
            Setting::Classifier(decide) => retry = retry.with_classify(classifier(decide)),
            Setting::WithoutRetries => overrides = overrides.without_retries(),
            Setting::RequestMaxAttempts(max) => overrides = overrides.with_max_attempts(max).unwrap(),
            Setting::DeclaredIdempotent => overrides = overrides.with_idempotent(),
            Setting::RejectedIdempotent => retry = retry.with_retry_rejected(RetryRejected::Idempotent),
            Setting::HonouredKey => retry = retry.with_honoured_idempotency_key(IdempotencyKey::bare()),
            Setting::CallerKey => {
                request.headers_mut().insert("idempotency-key", HeaderValue::from_static("caller-key"));
            }
            Setting::TransientBackoff(steps) => {
                retry = retry.with_custom_backoff(|| steps.iter().copied().map(millis))
            }
            Setting::ThrottledBackoff(steps) => {
                retry = retry.with_custom_throttled_backoff(|| steps.iter().copied().map(millis));
            }
            Setting::BudgetCapacity(capacity) => {
                retry = retry.with_budget(Budget::new().with_capacity(capacity).unwrap())
            }
            Setting::WithoutBudget => retry = retry.without_budget(),
        }
    }
    request.extensions_mut().insert(overrides);
    let inner = ScriptedService::new(responses.iter().copied());
    let retry = retry.layer(AttemptTimeoutLayer::new(attempt_timeout).unwrap().layer(inner.clone()));
    let result = match total_timeout {
        Some(total) => total.layer(retry).oneshot(request).await,
        None => retry.oneshot(request).await,
    };
    let elapsed = start.elapsed();

    let (actual, report) = match &result {
        Ok(response) => (Returns(response.status().as_u16()), response.extensions().get::<Report>()),
        Err(error) if error.is_deadline() => (DeadlineExceeded, error.report()),
        Err(error) if error.is_timeout() => (Timeout, error.report()),
        Err(error) => (IoError(cause::<io::Error>(error).unwrap().kind()), error.report()),
    };
    let report = report.expect("the result should have a report");
    let attempt_reports = report.attempts();
    assert_eq!((actual, report.stop_reason()), (expected, Some(stop_reason)), "{row:?}");
    assert_eq!((inner.calls(), report.attempt_count()), (attempts, attempts), "{row:?}");
    assert!(attempt_reports.iter().map(|attempt| attempt.number).eq(1..=attempts as u32), "{row:?}");

    let planned: Vec<_> =
        attempt_reports.iter().map(|attempt| attempt.delay.zip(attempt.delay_reason)).collect();
    assert_eq!(planned.iter().flatten().count(), delays.len(), "{row:?}");
    assert_eq!(planned.last(), Some(&None), "the report has a delay after the last attempt: {row:?}");
    for ((delay, reason), (reasons, bounds)) in planned.iter().flatten().zip(delays) {
        let bounds = millis(*bounds.start())..=millis(*bounds.end());
        assert!(bounds.contains(delay), "seed {seed}: the delay {delay:?} is not in {bounds:?}: {row:?}");
        assert!(reasons.contains(reason), "seed {seed}: unexpected delay reason {reason:?}: {row:?}");
    }
    for (pair, seen) in attempt_reports.windows(2).zip(&inner.seen()[1..]) {
        let slept = pair[1].started - pair[0].ended.unwrap();
        let planned = pair[0].delay.unwrap();
        assert!(
            slept >= planned && slept < planned + millis(2),
            "the call slept for {slept:?} instead of {planned:?}: {row:?}"
        );
        assert_eq!(seen.at - start, pair[1].started);
    }
    if delays.is_empty()
        && !responses.iter().any(|response| matches!(response, Scripted::NoResponse | Scripted::Delayed(..)))
    {
        assert_eq!(elapsed, Duration::ZERO, "{row:?}");
    }
    let mut keys = HashSet::new();
    for seen in inner.seen() {
        assert!(seen.body.is_none_or(|sent| sent == body.bytes()), "{method} {responses:?} {settings:?}");
        keys.insert(seen.head.headers.get("idempotency-key").cloned());
    }
    assert_eq!(keys.len(), 1, "the attempts have different idempotency keys: {row:?}");
    let has_key = settings.iter().any(|setting| match setting {
        Setting::CallerKey => true,
        Setting::HonouredKey => !["GET", "PUT"].contains(&method),
        _ => false,
    });
    assert_eq!(!keys.contains(&None), has_key, "{row:?}");
}
