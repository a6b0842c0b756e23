use http::request;

use super::{Classify, Outcome, Standard};
use crate::policy::{
    Verdict,
    grpc::{self, Code, Codes},
};

/// Judges the answers of a gRPC server, which are HTTP 200 also where the call has failed.
///
/// # Default
///
/// Tries again after `grpc-status` 14, `UNAVAILABLE`, and with the longer back-off after 8, `RESOURCE_EXHAUSTED`; after an
/// answer that is not the gRPC server's but a proxy's, of HTTP 429, 502, 503 or 504; and where there is no answer, as
/// [`Standard`] does. `grpc-retry-pushback-ms` is obeyed like `Retry-After`, and what is not a number of 0 or more is the
/// server's wish that there be no other attempt.
///
/// # What is not tried again
///
/// Only the head of an answer is read. An error in the trailers comes after the head was handed over, and with that, by
/// gRPC's own design of retries (proposal A6), the call is committed.
///
/// And a gRPC call is a POST, of which nobody knows what it does: no code proves that the server has done nothing. It is
/// sent again by itself only when nothing was sent, and otherwise when you say that it is idempotent, of the method by
/// [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent) or of one call by
/// [`PerRequest::idempotent`](super::PerRequest::idempotent). In gRPC's own implementations there is no retry, either,
/// before somebody has written down a `retryPolicy` for the method.
///
/// # A key that was refused
///
/// `UNAUTHENTICATED` in the head of an answer replaces a key that can be replaced, and an idempotent call is sent once
/// more with the new one, unless a negative pushback comes with it; see [after a 401](super#after-a-401).
///
/// # The deadline
///
/// It ends the call here, which cancels its HTTP/2 stream, and is not sent as `grpc-timeout`: by itself the server does
/// not know how long there is. Whoever wants it to know sets that field, as tonic's `Request::set_timeout` does, to the
/// time of one attempt, for each has the same.
///
/// # What a channel does not tell
///
/// That nothing was sent is read off the error of a connection that was refused or a stream that was. tonic's channel has
/// one error of its own for what else its connector fails with, TLS and its `connect_timeout` among it, which this crate
/// does not know: a call that is not idempotent is not sent again after it. A `map_err` right above the channel can say
/// so, by an [`io::Error`](std::io::Error) of `ConnectionRefused` around an error whose `source()` is a
/// `tonic::ConnectError`.
///
/// ```
/// use tower_outbound::{policy::grpc::Code, retry::{Grpc, RetryLayer}};
///
/// let layer = RetryLayer::new()
///     .with_classify(Grpc::new().retry_on_code(Code::ABORTED))
///     .with_idempotent(|head| ["/shop.Cart/Get", "/shop.Cart/List"].contains(&head.uri.path()));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Grpc {
    codes: Codes,
}

impl Grpc {
    /// The default.
    pub fn new() -> Self {
        Self { codes: Codes::PASSING }
    }

    /// Tries again after this code, too. [`Code::OK`] stays a success.
    pub fn retry_on_code(mut self, code: Code) -> Self {
        self.codes = self.codes.with(code);
        self
    }

    /// Hands an answer of this code over as it is.
    pub fn never_on_code(mut self, code: Code) -> Self {
        self.codes = self.codes.without(code);
        self
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self::new()
    }
}

impl Classify for Grpc {
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        match *outcome {
            Outcome::Answer { status, headers } => grpc::classify(status, headers, self.codes),
            Outcome::Failure { .. } => Standard.classify(request, outcome),
        }
    }
}
