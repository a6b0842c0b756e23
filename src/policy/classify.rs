//! Whether an outcome may be tried again, and why that would help.

use http::{Method, StatusCode};

/// Whether the server can have seen the request, which decides if a failed one may be sent again.
///
/// ```
/// use tower_outbound::policy::{Cause, Outcome, Sent, Verdict, classify};
///
/// // A refused connection carried nothing, so even a POST may try another.
/// assert_eq!(classify(false, Outcome::Failure(Sent::No)), Verdict::Retry(Cause::Transient));
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
/// let backoff = match classify(true, Outcome::Answer(StatusCode::TOO_MANY_REQUESTS)) {
///     Verdict::Retry(Cause::Throttled) => ExponentialBackoff::throttled(),
///     _ => ExponentialBackoff::transient(),
/// };
/// assert_eq!(backoff, ExponentialBackoff::throttled());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The server said that we are too many: 429.
    Throttled,
    /// Something that passes by itself: 408, 500, 502, 503, 504, or a failure of transport.
    Transient,
}

/// What came of an attempt.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::policy::{Outcome, Verdict, classify};
///
/// assert_eq!(classify(true, Outcome::Answer(StatusCode::OK)), Verdict::Success);
/// assert_eq!(classify(true, Outcome::Fatal), Verdict::NotRetryable);
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

/// What to do with the outcome of an attempt.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::policy::{Outcome, Verdict, classify};
///
/// let outcome = Outcome::Answer(StatusCode::BAD_GATEWAY);
/// assert_eq!(classify(false, outcome), Verdict::NotIdempotent);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Hand it on: 1xx, 2xx or 3xx. A 101 too, whose connection is the caller's from then on.
    Success,
    /// Another attempt may help and does no harm.
    Retry(Cause),
    /// Hand it on: another attempt would end the same way.
    NotRetryable,
    /// Hand it on: another attempt might help, but would do twice what the first may have done.
    NotIdempotent,
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

/// Decides if the request may be sent again after this outcome.
///
/// `idempotent` is told by the request as it was before the attempt: its method ([`is_idempotent`]), an
/// idempotency key, or the caller's word.
///
/// - 408, 429, 500, 502, 503 and 504, and a failure after which the server may have seen the request: when
///   idempotent. A server that answers 429 or 503 need not have refused before it began.
/// - A request that was provably not sent: always.
/// - No other status: 501 and 505 don't pass, and a 409 is for the caller to resolve.
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::policy::{Cause, Outcome, Sent, Verdict, classify};
///
/// let unavailable = Outcome::Answer(StatusCode::SERVICE_UNAVAILABLE);
/// assert_eq!(classify(true, unavailable), Verdict::Retry(Cause::Transient));
/// assert_eq!(classify(false, unavailable), Verdict::NotIdempotent);
/// ```
pub fn classify(idempotent: bool, outcome: Outcome) -> Verdict {
    let cause = match outcome {
        Outcome::Failure(Sent::No) => return Verdict::Retry(Cause::Transient),
        Outcome::Failure(Sent::Maybe) => Cause::Transient,
        Outcome::Fatal => return Verdict::NotRetryable,
        Outcome::Answer(status) => match status.as_u16() {
            ..400 => return Verdict::Success,
            429 => Cause::Throttled,
            408 | 500 | 502 | 503 | 504 => Cause::Transient,
            _ => return Verdict::NotRetryable,
        },
    };
    if idempotent { Verdict::Retry(cause) } else { Verdict::NotIdempotent }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [(&str, bool); 12] = [
        ("GET", true),
        ("HEAD", true),
        ("OPTIONS", true),
        ("TRACE", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
        ("CONNECT", false),
        ("PROPFIND", false),
        ("QUERY", false),
        ("get", false), // methods are case-sensitive
    ];

    #[test]
    fn methods_and_statuses() {
        for (name, expected) in METHODS {
            let idempotent = is_idempotent(&Method::from_bytes(name.as_bytes()).unwrap());
            assert_eq!(idempotent, expected, "{name}");

            for status in 100..1_000 {
                let retry = |cause| if expected { Verdict::Retry(cause) } else { Verdict::NotIdempotent };
                let verdict = match status {
                    100..=399 => Verdict::Success,
                    429 => retry(Cause::Throttled),
                    408 | 500 | 502 | 503 | 504 => retry(Cause::Transient),
                    _ => Verdict::NotRetryable,
                };
                let outcome = Outcome::Answer(StatusCode::from_u16(status).unwrap());
                assert_eq!(classify(idempotent, outcome), verdict, "{name} {status}");
            }
        }
    }

    #[test]
    fn failures() {
        let transient = Verdict::Retry(Cause::Transient);
        let cases = [
            (true, Outcome::Failure(Sent::No), transient),
            (false, Outcome::Failure(Sent::No), transient),
            (true, Outcome::Failure(Sent::Maybe), transient),
            (false, Outcome::Failure(Sent::Maybe), Verdict::NotIdempotent),
            (true, Outcome::Fatal, Verdict::NotRetryable),
            (false, Outcome::Fatal, Verdict::NotRetryable),
        ];
        for (idempotent, outcome, verdict) in cases {
            assert_eq!(classify(idempotent, outcome), verdict, "{outcome:?}");
        }
    }
}
