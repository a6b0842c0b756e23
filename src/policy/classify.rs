//! Whether another attempt may succeed after an outcome, and whether it is safe.

use http::{Method, StatusCode};

/// States how far the request of an attempt got. [`may_repeat`] decides by it whether a retry is safe.
///
/// | value | which attempts | retried |
/// |---|---|---|
/// | `NotSent` | the connection failed, the request was never written, or the server refused it unread | any method |
/// | `MaybeProcessed` | every other failure, and every response | idempotent requests only |
///
/// ```
/// use tower_outbound::policy::{Delivery, may_repeat};
///
/// // A refused connection carried nothing, so even a POST is retried.
/// assert!(may_repeat(false, Delivery::NotSent));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The server provably did not process the request.
    NotSent,
    /// The server may have processed the request, or nothing proves that it did not.
    MaybeProcessed,
}

/// Why a retry may succeed. Selects the backoff.
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
    /// The server rejects requests because of load: 429, 529, or gRPC's `RESOURCE_EXHAUSTED`.
    Throttled,
    /// A temporary failure: any other status that is retried, gRPC's `UNAVAILABLE`, or a transport error.
    Transient,
}

impl Cause {
    /// Returns the cause for a status that is retried: [`Throttled`](Self::Throttled) for 429 and 529,
    /// [`Transient`](Self::Transient) otherwise.
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            429 | 529 => Self::Throttled,
            _ => Self::Transient,
        }
    }
}

/// How an attempt ended.
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
    /// A response arrived, with this status.
    Answer(StatusCode),
    /// The transport failed before a response arrived.
    Failure(Delivery),
    /// The next attempt would fail in the same way, for example after an error of another layer of this crate.
    Fatal,
}

/// Whether a retry may succeed. [`may_repeat`] decides whether it is safe.
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
    /// The attempt succeeded: 1xx, 2xx or 3xx.
    Success,
    /// Another attempt may succeed.
    Retry(Cause),
    /// Another attempt would end in the same way.
    NotRetryable,
}

/// Returns whether the method is idempotent: GET, HEAD, OPTIONS, TRACE, PUT or DELETE (RFC 9110 §9.2.2).
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

/// Returns whether a retry may succeed after this outcome.
///
/// | outcome | verdict |
/// |---|---|
/// | 1xx, 2xx, 3xx | success |
/// | 429, 529 (overloaded) | retry, throttled |
/// | 408, 500, 502, 503, 504 | retry, transient |
/// | 520–524, 530: a CDN could not reach its origin | retry, transient |
/// | any transport error | retry, transient |
/// | any other status, such as 409, 501 and 505 | not retryable |
///
/// After a 409 the caller must decide. A server that returns 501 or 505 does not support the request.
pub fn classify(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Failure(_) => Verdict::Retry(Cause::Transient),
        Outcome::Fatal => Verdict::NotRetryable,
        Outcome::Answer(status) => match status.as_u16() {
            ..400 => Verdict::Success,
            408 | 429 | 500 | 502 | 503 | 504 | 520..=524 | 529 | 530 => Verdict::Retry(Cause::of(status)),
            _ => Verdict::NotRetryable,
        },
    }
}

/// Returns whether a retry is safe: after [`Delivery::NotSent`] always, otherwise only if the request is idempotent.
///
/// A response counts as [`Delivery::MaybeProcessed`], whatever its status: a server may send a 429 or 503 after it
/// began to process the request.
///
/// The caller determines `idempotent` before the attempt: by the method ([`is_idempotent`]), by an idempotency key that
/// the server honours, or by a declaration.
///
/// ```
/// use tower_outbound::policy::{Delivery, may_repeat};
///
/// assert!(may_repeat(false, Delivery::NotSent));
/// assert!(!may_repeat(false, Delivery::MaybeProcessed));
/// assert!(may_repeat(true, Delivery::MaybeProcessed));
/// ```
pub fn may_repeat(idempotent: bool, delivery: Delivery) -> bool {
    idempotent || delivery == Delivery::NotSent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_six_methods_of_the_rfc_are_idempotent() {
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
    fn classifies_every_status() {
        for status in 100..1_000 {
            let verdict = match status {
                100..=399 => Verdict::Success,
                429 | 529 => Verdict::Retry(Cause::Throttled),
                408 | 500 | 502 | 503 | 504 | 520..=524 | 530 => Verdict::Retry(Cause::Transient),
                _ => Verdict::NotRetryable,
            };
            assert_eq!(classify(Outcome::Answer(StatusCode::from_u16(status).unwrap())), verdict, "{status}");
        }
    }

    #[test]
    fn retries_every_transport_error_and_no_fatal_one() {
        for delivery in [Delivery::NotSent, Delivery::MaybeProcessed] {
            assert_eq!(classify(Outcome::Failure(delivery)), Verdict::Retry(Cause::Transient));
        }
        assert_eq!(classify(Outcome::Fatal), Verdict::NotRetryable);
    }

    #[test]
    fn repeats_what_may_have_been_processed_only_if_idempotent() {
        for (delivery, unless_idempotent) in [(Delivery::NotSent, true), (Delivery::MaybeProcessed, false)] {
            assert!(may_repeat(true, delivery));
            assert_eq!(may_repeat(false, delivery), unless_idempotent, "{delivery:?}");
        }
    }
}
