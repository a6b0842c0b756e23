use std::{fmt, sync::Arc};

use http::{Extensions, HeaderMap, HeaderValue, StatusCode};

use crate::{
    call::{Outcome, RequestHead},
    error::{Error, Failed},
    policy::{
        RetryDecision,
        feedback::{Reading, Throttle},
        grpc::{self, Code, Pushback},
    },
};

/// Decides whether another attempt may succeed.
///
/// [`DefaultClassifier`] is the default, and [`Grpc`] reads gRPC responses. For single statuses and
/// conditions use [`RetryLayer::retry_on`](super::RetryLayer::retry_on), [`never_on`](super::RetryLayer::never_on) and
/// [`retry_if`](super::RetryLayer::retry_if), which are evaluated before the classifier.
///
/// # Notes
///
/// - A classifier cannot cause an unsafe retry. A request that may have been processed is retried only if it is
///   idempotent. It is idempotent by its method, by an idempotency key that the server honours, or by a declaration
///   ([`RetryOverride::with_idempotent`](super::RetryOverride::with_idempotent),
///   [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent)).
/// - The layer does not call the classifier after a 101.
///
/// # Example
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::{
///     call::RequestHead,
///     retry::{AttemptResult, Classify, DefaultClassifier, RetryDecision, RetryLayer},
/// };
///
/// /// A service that reports a deadlock with a 409.
/// struct Deadlocks;
///
/// impl Classify for Deadlocks {
///     fn classify(&self, request: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision {
///         match (attempt.status(), attempt.header("x-error")) {
///             (Some(StatusCode::CONFLICT), Some(error)) if error == "deadlock" => RetryDecision::Transient,
///             _ => DefaultClassifier.classify(request, attempt),
///         }
///     }
/// }
///
/// let layer = RetryLayer::new().with_classify(Deadlocks);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify attempts",
    label = "not a `Classify`",
    note = "to add rules to the default ones, use `RetryLayer::retry_on([status])`, `RetryLayer::never_on([status])`, `RetryLayer::retry_if(|request, attempt| ..)`"
)]
pub trait Classify: Send + Sync {
    /// Returns the decision about an attempt. `request` is the request as it was before that attempt.
    fn classify(&self, request: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision;
}

/// The result of an attempt, as the input of a [`Classify`].
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct AttemptResult<'a> {
    /// How the attempt ended.
    pub outcome: Outcome,
    /// The response headers. The body was not read yet, unless it [broke](super#broken-response-bodies).
    pub headers: Option<&'a HeaderMap>,
    /// The response extensions. An inner layer may have inserted a value, for example to decide [by the
    /// body](super#deciding-by-the-body).
    pub extensions: Option<&'a Extensions>,
    /// The error, if the attempt ended without a response, or if the response's body broke.
    pub error: Option<&'a Error>,
    pub(super) reading: Option<&'a Reading<'a>>,
}

impl<'a> AttemptResult<'a> {
    /// Returns the status of the response, if one arrived.
    pub fn status(&self) -> Option<StatusCode> {
        self.outcome.status()
    }

    /// Returns the first value of this header of the response, if a response arrived.
    pub fn header(&self, name: &str) -> Option<&'a HeaderValue> {
        self.headers?.get(name)
    }

    /// Returns the value of this type that an inner layer has inserted into the extensions of the response.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&'a T> {
        self.extensions?.get()
    }
}

// Does not write the headers, because their values may be secrets.
impl fmt::Debug for AttemptResult<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("AttemptResult");
        debug.field("outcome", &self.outcome).field("error", &self.error).finish_non_exhaustive()
    }
}

/// Retries after temporary failures. This is the default [`Classify`].
///
/// | result | retried | backoff |
/// |---|---|---|
/// | a [throttle](crate::limit::ServerSignal): 429, 529, 509, 420, a 403 or 418 that states a delay above zero or an empty quota | yes | throttled |
/// | a throttle that is [permanent](crate::limit::ServerSignal::with_permanent) | no | |
/// | 408, 500, 502, 503, 504, 520–524, 530 | yes | transient |
/// | any other status, such as 409, 501 and 505 | no | |
/// | a 4xx or 5xx with `x-should-retry` or `stripe-should-retry`: `true` or `false` | as the header specifies | by status |
/// | a response body that [broke](super#broken-response-bodies) | yes, unless one of these headers is `false` | transient |
/// | an attempt's timeout, a transport error | yes | transient |
/// | a [permanent failure](crate::guide::retries#permanent-failures), such as an invalid certificate | no | |
/// | an error of another layer of this crate, such as the limiter | no | |
///
/// Statuses 520–524 and 530 come from a CDN that could not reach its origin, and 529 from an overloaded server.
/// `x-should-retry` and `stripe-should-retry` are ignored if they appear several times with different values.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultClassifier;

impl DefaultClassifier {
    /// Returns the decision. It does not depend on the request.
    pub(super) fn decide(self, attempt: &AttemptResult<'_>) -> RetryDecision {
        match (attempt.outcome.status(), attempt.error) {
            (Some(status), _) => {
                let stated = attempt.headers.filter(|_| status.as_u16() >= 400).and_then(should_retry);
                let throttle = attempt.reading.map_or(Throttle::No, Reading::throttle);
                match (throttle, stated) {
                    (Throttle::Permanent, _) | (_, Some(false)) => RetryDecision::NotRetryable,
                    (Throttle::Temporary, _) => RetryDecision::Throttled,
                    (Throttle::No, Some(true)) => RetryDecision::Transient,
                    (Throttle::No, None) => RetryDecision::of(status),
                }
            }
            (None, Some(error)) if is_lasting(error) => RetryDecision::NotRetryable,
            // The body of a response broke, but the response forbids a retry.
            (None, _) if attempt.headers.and_then(should_retry) == Some(false) => RetryDecision::NotRetryable,
            (None, _) => RetryDecision::Transient,
        }
    }
}

impl Classify for DefaultClassifier {
    fn classify(&self, _: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision {
        self.decide(attempt)
    }
}

/// Returns whether every further attempt would also fail. This is the case if another layer of this crate returned the
/// error, or if the server's certificate is wrong.
fn is_lasting(error: &Error) -> bool {
    match error.failed() {
        Failed::Layer | Failed::Unsent => !error.is_timeout() || error.is_deadline(),
        Failed::Readiness => false,
        Failed::Service(proof) => proof.lasting,
    }
}

/// Returns `Some(true)` if all `x-should-retry` and `stripe-should-retry` fields of a response are `true`, and
/// `Some(false)` if all are `false`. Returns `None` otherwise.
fn should_retry(headers: &HeaderMap) -> Option<bool> {
    let fields = ["x-should-retry", "stripe-should-retry"].into_iter().flat_map(|name| headers.get_all(name));
    let mut values = fields.map(|value| match value.as_bytes().trim_ascii() {
        value if value.eq_ignore_ascii_case(b"true") => Some(true),
        value if value.eq_ignore_ascii_case(b"false") => Some(false),
        _ => None,
    });
    let first = values.next()?;
    first.filter(|_| values.all(|other| other == first))
}

/// A rule of the retry layer that is evaluated before the classifier.
#[derive(Clone)]
pub(super) enum Rule {
    Status(StatusCode, RetryDecision),
    If(Arc<Condition>),
}

type Condition = dyn Fn(RequestHead<'_>, &AttemptResult<'_>) -> bool + Send + Sync;

impl Rule {
    /// Returns the decision if the rule applies. A rule with a condition applies only if `request` is `Some`.
    pub(super) fn decide(
        &self,
        request: Option<RequestHead<'_>>,
        attempt: &AttemptResult<'_>,
    ) -> Option<RetryDecision> {
        let status = attempt.outcome.status();
        match self {
            Self::Status(on, decision) => (status == Some(*on)).then_some(*decision),
            Self::If(condition) => condition(request?, attempt).then(|| RetryDecision::retry(status)),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status, decision) => write!(f, "{}: {decision:?}", status.as_u16()),
            Self::If(_) => f.write_str("If"),
        }
    }
}

/// Classifies gRPC responses. Their HTTP status is 200 even if the call failed.
///
/// # Default
///
/// | outcome | retried | backoff |
/// |---|---|---|
/// | `grpc-status` 14, `UNAVAILABLE` | yes | transient |
/// | `grpc-status` 8, `RESOURCE_EXHAUSTED` | yes | throttled |
/// | HTTP 429, 529, 509, 420 or a status of the dialect without a `grpc-status`, as from a proxy | yes | throttled |
/// | a [signal](crate::limit::ServerSignal) that the server throttles, with any status | yes | throttled |
/// | a [permanent](crate::limit::ServerSignal::with_permanent) signal | no | |
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
            Some((_, headers))
                if attempt.reading.is_some_and(Reading::is_throttled_beside_grpc)
                    && grpc::pushback(headers) != Some(Pushback::Never) =>
            {
                RetryDecision::Throttled
            }
            Some((status, headers)) => grpc::classify(status, headers, &self.codes),
            None => DefaultClassifier.decide(attempt),
        }
    }
}
