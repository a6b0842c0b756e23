//! Whether another attempt would help after an outcome, and whether it would do no harm.

use http::{Method, StatusCode};

/// Whether the server can have seen the request, which decides if a failed one may be sent again.
///
/// ```
/// use tower_outbound::policy::{Sent, may_repeat};
///
/// // A refused connection carried nothing, so even a POST may try another.
/// assert!(may_repeat(false, Some(Sent::No)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Provably not: no connection was made, or the server said that it didn't look.
    No,
    /// It may have been processed: everything that isn't provably unsent.
    Maybe,
}

/// Why another attempt may help; picks the back-off.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::policy::{Cause, ExponentialBackoff, Outcome, Verdict, classify};
///
/// let backoff = match classify(Outcome::Answer(StatusCode::TOO_MANY_REQUESTS)) {
///     Verdict::Retry(Cause::Throttled) => ExponentialBackoff::throttled(),
///     _ => ExponentialBackoff::transient(),
/// };
/// assert_eq!(backoff, ExponentialBackoff::throttled());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The server said that we are too many: 429, or gRPC's `RESOURCE_EXHAUSTED`.
    Throttled,
    /// Something that passes by itself: 408, 500, 502, 503, 504, gRPC's `UNAVAILABLE`, or a failure of transport.
    Transient,
}

impl Cause {
    /// Of an answer that is to be tried again: 429 is a throttling, any other passes by itself.
    pub fn of(status: StatusCode) -> Self {
        if status == StatusCode::TOO_MANY_REQUESTS { Self::Throttled } else { Self::Transient }
    }
}

/// What came of an attempt.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::policy::{Outcome, Verdict, classify};
///
/// assert_eq!(classify(Outcome::Answer(StatusCode::OK)), Verdict::Success);
/// assert_eq!(classify(Outcome::Fatal), Verdict::NotRetryable);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The head of a response came.
    Answer(StatusCode),
    /// Transport failed before one came.
    Failure(Sent),
    /// It would fail the same way next time, such as a refusal by one of our own layers.
    Fatal,
}

/// Whether another attempt would help. Whether it would do no harm is [`may_repeat`]'s to say.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::policy::{Cause, Outcome, Verdict, classify};
///
/// let outcome = Outcome::Answer(StatusCode::BAD_GATEWAY);
/// assert_eq!(classify(outcome), Verdict::Retry(Cause::Transient));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It did what it should: 1xx, 2xx or 3xx.
    Success,
    /// Another attempt may help.
    Retry(Cause),
    /// Another attempt would end the same way.
    NotRetryable,
}

/// Whether a request of that method may be sent twice by itself: GET, HEAD, OPTIONS, TRACE, PUT and DELETE
/// (RFC 9110 §9.2.2). A method that isn't known here is not.
///
/// ```
/// use http::Method;
/// use tower_outbound::policy::is_idempotent;
///
/// assert!(is_idempotent(&Method::PUT));
/// assert!(!is_idempotent(&Method::POST));
/// ```
pub fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE].contains(method)
}

/// Whether another attempt would help after this outcome.
///
/// 408, 429, 500, 502, 503, 504 and every failure of transport pass by themselves. No other status does: 501 and
/// 505 stay, and a 409 is for the caller to resolve.
pub fn classify(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Failure(_) => Verdict::Retry(Cause::Transient),
        Outcome::Fatal => Verdict::NotRetryable,
        Outcome::Answer(status) => match status.as_u16() {
            ..400 => Verdict::Success,
            408 | 429 | 500 | 502 | 503 | 504 => Verdict::Retry(Cause::of(status)),
            _ => Verdict::NotRetryable,
        },
    }
}

/// Whether the request may be sent again after an attempt that got so far, `None` for one that was answered: always
/// when it was provably not sent, else only when doing it twice is doing it once. A server that answers 429 or 503
/// need not have refused before it began.
///
/// `idempotent` is told by the request as it was before the attempt: its method ([`is_idempotent`]), an
/// idempotency key, or the caller's word.
///
/// ```
/// use tower_outbound::policy::{Sent, may_repeat};
///
/// assert!(may_repeat(false, Some(Sent::No)));
/// assert!(!may_repeat(false, Some(Sent::Maybe)) && !may_repeat(false, None));
/// assert!(may_repeat(true, None));
/// ```
pub fn may_repeat(idempotent: bool, failed: Option<Sent>) -> bool {
    idempotent || failed == Some(Sent::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods() {
        let idempotent = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
        // Methods are case-sensitive.
        let others = ["POST", "PATCH", "CONNECT", "PROPFIND", "QUERY", "get"];
        for (names, expected) in [(idempotent, true), (others, false)] {
            for name in names {
                assert_eq!(is_idempotent(&Method::from_bytes(name.as_bytes()).unwrap()), expected, "{name}");
            }
        }
    }

    #[test]
    fn statuses() {
        for status in 100..1_000 {
            let verdict = match status {
                100..=399 => Verdict::Success,
                429 => Verdict::Retry(Cause::Throttled),
                408 | 500 | 502 | 503 | 504 => Verdict::Retry(Cause::Transient),
                _ => Verdict::NotRetryable,
            };
            assert_eq!(classify(Outcome::Answer(StatusCode::from_u16(status).unwrap())), verdict, "{status}");
        }
    }

    #[test]
    fn failures() {
        for sent in [Sent::No, Sent::Maybe] {
            assert_eq!(classify(Outcome::Failure(sent)), Verdict::Retry(Cause::Transient));
        }
        assert_eq!(classify(Outcome::Fatal), Verdict::NotRetryable);
    }

    #[test]
    fn what_may_have_been_done_is_repeated_only_when_idempotent() {
        let cases = [(Some(Sent::No), true), (Some(Sent::Maybe), false), (None, false)];
        for (failed, unless_idempotent) in cases {
            assert!(may_repeat(true, failed));
            assert_eq!(may_repeat(false, failed), unless_idempotent, "{failed:?}");
        }
    }
}
