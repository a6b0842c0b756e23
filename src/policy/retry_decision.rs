use http::{Method, StatusCode};

/// Decides whether a retry may succeed, and selects its backoff.
///
/// A [`Classify`](crate::retry::Classify) returns this decision. The retry layer decides separately whether a retry is
/// safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryDecision {
    /// The attempt succeeded.
    Success,
    /// The failure is temporary. A retry waits for the transient backoff.
    Transient,
    /// The server rejects requests under load. A retry waits for the throttled backoff.
    Throttled,
    /// No retry, because another attempt would also fail.
    NotRetryable,
}

impl RetryDecision {
    /// Returns the default decision for a response with this status.
    ///
    /// | status | decision |
    /// |---|---|
    /// | 1xx, 2xx, 3xx | success |
    /// | 429, 529 (overloaded) | throttled |
    /// | 408, 500, 502, 503, 504 | transient |
    /// | 520–524, 530: a CDN could not reach its origin | transient |
    /// | any other status, such as 409, 501 and 505 | not retryable |
    ///
    /// A 409 is a conflict that only the caller can resolve. A server that returns 501 or 505 does not support the
    /// request.
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            ..400 => Self::Success,
            408 | 429 | 500 | 502 | 503 | 504 | 520..=524 | 529 | 530 => Self::retry(Some(status)),
            _ => Self::NotRetryable,
        }
    }

    /// Returns the decision to retry after this status: throttled for 429 and 529, otherwise transient. `None` means
    /// that no response arrived, which is a transient failure.
    pub(crate) fn retry(status: Option<StatusCode>) -> Self {
        match status.map(|status| status.as_u16()) {
            Some(429 | 529) => Self::Throttled,
            _ => Self::Transient,
        }
    }
}

/// Returns whether the method is idempotent (RFC 9110 §9.2.2).
pub(crate) fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE].contains(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn treats_only_the_six_methods_of_rfc_9110_as_idempotent() {
        let idempotent = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
        // Method names are case-sensitive.
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
            let expected = match status {
                100..=399 => RetryDecision::Success,
                429 | 529 => RetryDecision::Throttled,
                408 | 500 | 502 | 503 | 504 | 520..=524 | 530 => RetryDecision::Transient,
                _ => RetryDecision::NotRetryable,
            };
            assert_eq!(RetryDecision::of(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        }
    }
}
