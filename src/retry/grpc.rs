use super::{AttemptResult, Classify, DefaultClassifier};
use crate::{
    call::RequestHead,
    policy::{
        RetryDecision,
        feedback::Reading,
        grpc::{self, Code},
    },
};

/// Classifies gRPC responses. Their HTTP status is 200 even if the call failed.
///
/// # Default
///
/// | outcome | retried | backoff |
/// |---|---|---|
/// | `grpc-status` 14, `UNAVAILABLE` | yes | transient |
/// | `grpc-status` 8, `RESOURCE_EXHAUSTED` | yes | throttled |
/// | HTTP 429 without a `grpc-status`, as from a proxy | yes | throttled |
/// | HTTP 502, 503 or 504 without a `grpc-status` | yes | transient |
/// | any other status | no | |
/// | no response | as [`DefaultClassifier`] decides | transient |
///
/// `grpc-retry-pushback-ms` delays a retry like `Retry-After` does. A negative value, or one that is not a whole
/// number, forbids a retry. The `google.rpc.RetryInfo` in `grpc-status-details-bin` also delays a retry. If both are
/// present, the longer delay applies.
///
/// # Idempotent methods
///
/// A gRPC call is a POST, and no gRPC code alone proves that the server did not process it. A call is retried only in
/// these cases:
///
/// - An error proves that it was not sent.
/// - The server [rejected](crate::call::Delivery#rejected-requests) it: `RESOURCE_EXHAUSTED` with a delay, or an HTTP
///   429 or 529 without a `grpc-status`.
/// - Its method is declared idempotent with [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent), or the
///   call with [`RetryOverride::with_idempotent`](super::RetryOverride::with_idempotent).
///
/// gRPC's own libraries have a similar rule. They retry a call that the server may have processed only if its method
/// has a `retryPolicy`.
///
/// # Notes
///
/// - Only the response headers are read. An error in the trailers arrives after the headers were returned to the
///   caller. gRPC then considers the call committed (proposal A6).
/// - After `UNAUTHENTICATED` in the headers, an idempotent call is resent once if its key can be replaced: see [after a
///   401](super#after-a-401).
/// - The call's deadline cancels the HTTP/2 stream. The deadline is not sent to the server as `grpc-timeout`. To send
///   the time limit of an attempt, use tonic's `Request::set_timeout`.
/// - tonic's channel wraps every failed connect in its own error. Inside this error, the layer recognizes a connector's
///   error and a refused stream. It does not recognize a TLS failure or the end of tonic's `connect_timeout`. For
///   these, add [`DeliveryError::not_sent_if_caused_by`](crate::error::DeliveryError::not_sent_if_caused_by) directly
///   above the channel.
///
/// # Example
///
/// ```
/// use tower_outbound::retry::{Grpc, GrpcCode, RetryLayer};
///
/// let layer = RetryLayer::new()
///     .with_classify(Grpc::new().retry_on_code(GrpcCode::ABORTED))
///     .with_idempotent(|head| ["/shop.Cart/Get", "/shop.Cart/List"].contains(&head.uri.path()));
/// ```
#[derive(Debug, Clone)]
pub struct Grpc {
    codes: Vec<Code>,
}

impl Grpc {
    /// Returns the default classifier.
    pub fn new() -> Self {
        Self { codes: grpc::TEMPORARY.into() }
    }

    /// Also retries after this code. Has no effect for [`Code::OK`].
    pub fn retry_on_code(mut self, code: Code) -> Self {
        self.codes.push(code);
        self
    }

    /// Never retries after this code.
    pub fn never_on_code(mut self, code: Code) -> Self {
        self.codes.retain(|kept| *kept != code);
        self
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self::new()
    }
}

impl Classify for Grpc {
    fn classify(&self, _: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision {
        if attempt.reading.is_some_and(Reading::is_permanent) {
            return RetryDecision::NotRetryable;
        }
        match attempt.outcome.status().zip(attempt.headers) {
            Some((status, headers)) => grpc::classify(status, headers, &self.codes),
            None => DefaultClassifier.decide(attempt),
        }
    }
}
