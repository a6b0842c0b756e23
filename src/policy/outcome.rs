use http::StatusCode;

/// Whether the server may have processed the request of an attempt. The retry layer uses this value to decide whether a
/// retry is safe.
///
/// | value | attempts | retried |
/// |---|---|---|
/// | `NotSent` | no connection, the request was never written, or the server rejected it unread | any method |
/// | `MaybeProcessed` | any other failure | idempotent requests only |
/// | `Processed` | a response arrived, whatever its status | idempotent requests only |
///
/// A request that receives a 429 or 503 is treated as processed, because a server may send this status after it started
/// to process the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The server provably did not process the request.
    NotSent,
    /// The server may have processed the request, because nothing proves that it did not.
    MaybeProcessed,
    /// The server responded.
    Processed,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// A response arrived, with this status.
    Response(StatusCode),
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
    /// Returns the status of the response, if one arrived.
    pub fn status(self) -> Option<StatusCode> {
        match self {
            Self::Response(status) => Some(status),
            _ => None,
        }
    }

    /// Returns whether the server may have processed the request.
    pub fn delivery(self) -> Delivery {
        match self {
            Self::Response(_) => Delivery::Processed,
            Self::Timeout | Self::Failed => Delivery::MaybeProcessed,
            Self::Refused | Self::NotSent => Delivery::NotSent,
        }
    }

    /// Returns the outcome as text: the status as digits, or the failure as one or two words.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Response(status) => status.as_str(),
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::NotSent => "not sent",
            Self::Failed => "failed",
        }
    }
}
