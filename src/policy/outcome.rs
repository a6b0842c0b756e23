use http::StatusCode;

use super::feedback::Reading;

/// Whether the server may have processed the request of an attempt. The retry layer uses this value to decide whether a
/// retry is safe.
///
/// | value | attempts | retried |
/// |---|---|---|
/// | `NotSent` | no connection, the request was never written, or the HTTP/2 server refused its stream | any method |
/// | `Rejected` | a [rejected request](#rejected-requests), such as a 429 | any method, by default |
/// | `MaybeProcessed` | any other failure | idempotent requests only |
/// | `Processed` | any other response | idempotent requests only |
///
/// # Rejected requests
///
/// - A 429 means that the client has sent too many requests (RFC 6585, section 4). Rate limiters reject such a request
///   before it is processed. Stripe, for example, documents that its rate limiters run before its idempotency layer.
/// - `RESOURCE_EXHAUSTED` counts only in the response headers, and only with `RetryInfo` or a pushback that is not
///   negative. Without such a delay, the code may report a resource that ran out while the request was processed.
/// - The status 529 (overloaded) is read like a 429, and so are the statuses of a [`Dialect`](crate::limit::Dialect).
/// - A 403, 418, 420 or 509 that reports a quota without remaining permits is `Rejected`, as GitHub sends it. Without such
///   a quota it may have another meaning.
/// - If a response has a `grpc-status`, its HTTP status does not count.
/// - A 503 is `Processed`, because a server may send it after it started to process the request.
/// - For a service that sends a 429 after it processed the request, see
///   [`RetryLayer::with_retry_rejected`](crate::retry::RetryLayer::with_retry_rejected).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The server provably did not process the request.
    NotSent,
    /// The server states that it did not process the request.
    Rejected,
    /// The server may have processed the request, because nothing proves that it did not.
    MaybeProcessed,
    /// The server responded, and does not state that it did not process the request.
    Processed,
}

impl Delivery {
    /// Returns whether a retry may make the server process the request twice.
    pub(crate) fn may_be_processed(self) -> bool {
        matches!(self, Self::MaybeProcessed | Self::Processed)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// A response arrived, with this status.
    Response(StatusCode),
    /// A response arrived, with this status. The server states that it did [not process the
    /// request](Delivery#rejected-requests).
    Rejected(StatusCode),
    /// The attempt's timeout expired, or the response's body stalled while the client read it.
    Timeout,
    /// The limiter refused the attempt.
    Refused,
    /// The attempt failed before the server could process it.
    NotSent,
    /// The attempt failed, or the response's body broke while the client read it. The server may have processed the
    /// request.
    Failed,
}

impl Outcome {
    /// Returns the outcome of an attempt that ended with a response.
    pub(crate) fn of_response(response: &Reading<'_>) -> Self {
        match response.is_rejected() {
            true => Self::Rejected(response.status),
            false => Self::Response(response.status),
        }
    }

    /// Returns the status of the response, if one arrived.
    pub fn status(self) -> Option<StatusCode> {
        match self {
            Self::Response(status) | Self::Rejected(status) => Some(status),
            _ => None,
        }
    }

    /// Returns whether the server may have processed the request.
    pub fn delivery(self) -> Delivery {
        match self {
            Self::Response(_) => Delivery::Processed,
            Self::Rejected(_) => Delivery::Rejected,
            Self::Timeout | Self::Failed => Delivery::MaybeProcessed,
            Self::Refused | Self::NotSent => Delivery::NotSent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::HeaderMap;

    use super::{
        super::{dialect::STANDARD, head_of},
        *,
    };

    /// A `google.rpc.Status` with code 8 and a `RetryInfo` of 3 s, as protobuf's Python library encodes it.
    const RETRY_INFO: &[u8] =
        b"CAgSBXF1b3RhGjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAM=";

    fn read(status: StatusCode, headers: &HeaderMap) -> Outcome {
        Outcome::of_response(&Reading::new(&STANDARD, status, headers, None, || SystemTime::UNIX_EPOCH))
    }

    #[test]
    fn only_throttle_statuses_reject_a_request_without_grpc_status() {
        let hints = head_of([
            ("retry-after", &b"1"[..]),
            ("grpc-retry-pushback-ms", b"5"),
            ("grpc-status-details-bin", RETRY_INFO),
        ]);
        let mut empty = hints.clone();
        empty.extend(head_of([("x-ratelimit-remaining", &b"0"[..]), ("x-ratelimit-reset", b"9")]));
        for status in (100..1_000).map(|status| StatusCode::from_u16(status).unwrap()) {
            let expected = |is_empty: bool| match status.as_u16() {
                429 | 529 => Delivery::Rejected,
                403 | 418 | 420 | 509 if is_empty => Delivery::Rejected,
                _ => Delivery::Processed,
            };
            for (headers, is_empty) in [(&HeaderMap::new(), false), (&hints, false), (&empty, true)] {
                let outcome = read(status, headers);
                assert_eq!((outcome.delivery(), outcome.status()), (expected(is_empty), Some(status)));
            }
        }
    }

    /// Checks every combination of an HTTP status, a gRPC code, a pushback and a `RetryInfo`.
    #[test]
    fn grpc_call_is_rejected_only_by_resource_exhausted_with_a_delay() {
        for status in [200, 204, 403, 429, 503, 529] {
            for code in 0..=17 {
                for pushback in [None, Some("0"), Some("250"), Some("-1"), Some("soon")] {
                    for retry_info in [None, Some(RETRY_INFO), Some(b"CAgSBXF1b3Rh"), Some(b"!")] {
                        let code_text = code.to_string();
                        let mut fields = vec![("grpc-status", code_text.as_bytes())];
                        fields.extend(pushback.map(|text| ("grpc-retry-pushback-ms", text.as_bytes())));
                        fields.extend(retry_info.map(|text| ("grpc-status-details-bin", text)));
                        let outcome = read(StatusCode::from_u16(status).unwrap(), &head_of(fields));
                        let has_delay = match pushback {
                            Some("-1" | "soon") => false,
                            Some(_) => true,
                            None => retry_info == Some(RETRY_INFO),
                        };
                        let expected = match code == 8 && has_delay {
                            true => Delivery::Rejected,
                            false => Delivery::Processed,
                        };
                        let case = (status, code, pushback, retry_info);
                        assert_eq!(outcome.delivery(), expected, "{case:?}");
                    }
                }
            }
        }
    }
}
