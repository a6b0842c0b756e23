use std::{fmt, sync::Arc};

use http::{HeaderMap, StatusCode, request};

use super::outcome;
use crate::{
    error::Error,
    policy::{self, Cause, Delivery, Verdict},
};

/// Decides whether another attempt may succeed after an outcome.
///
/// [`Standard`] is the default, and [`Grpc`](super::Grpc) reads gRPC responses. The methods of this trait add custom
/// rules to a classifier. The last added rule is evaluated first.
///
/// # Notes
///
/// - A classifier cannot override safety. A request that may have been processed is retried only if it is idempotent:
///   by its method, by an idempotency key that the server honours, or by a declaration
///   ([`RetryOverride::idempotent`](super::RetryOverride::idempotent),
///   [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent)).
/// - The layer does not call it for a 101.
///
/// # Example
///
/// ```
/// use http::StatusCode;
/// use tower_outbound::{
///     policy::{Cause, Verdict},
///     retry::{Classify, Outcome, RetryLayer, Standard},
/// };
///
/// let classify = Standard
///     .retry_on(StatusCode::CONFLICT)
///     .never_on(StatusCode::INTERNAL_SERVER_ERROR)
///     // Some services throttle with a 403.
///     .when(|_request, outcome| match outcome {
///         Outcome::Answer { status: StatusCode::FORBIDDEN, headers }
///             if headers.get("x-ratelimit-remaining").is_some_and(|left| left == "0") =>
///         {
///             Some(Verdict::Retry(Cause::Throttled))
///         }
///         _ => None,
///     });
/// let layer = RetryLayer::new().with_classify(classify);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify outcomes",
    label = "not a `Classify`",
    note = "rules are added to the default ones: `Standard.retry_on(status)`, `Standard.never_on(status)`, `Standard.when(|request, outcome| ..)`"
)]
pub trait Classify: Send + Sync {
    /// Returns the verdict on the outcome of an attempt. `request` is the request as it was before the attempt.
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict;

    /// Retries after this status, with the throttled backoff if it is 429 or 529.
    fn retry_on(self, status: StatusCode) -> On<Self>
    where
        Self: Sized,
    {
        On { inner: self, status, verdict: Verdict::Retry(Cause::of(status)) }
    }

    /// Never retries after this status.
    fn never_on(self, status: StatusCode) -> On<Self>
    where
        Self: Sized,
    {
        On { inner: self, status, verdict: Verdict::NotRetryable }
    }

    /// Evaluates `rule` first. Continues with this classifier if it returns `None`.
    fn when<F>(self, rule: F) -> When<Self, F>
    where
        Self: Sized,
        F: Fn(&request::Parts, &Outcome<'_>) -> Option<Verdict> + Send + Sync,
    {
        When { inner: self, rule }
    }
}

/// A classifier chosen at run time.
impl<C: Classify + ?Sized> Classify for Arc<C> {
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        C::classify(self, request, outcome)
    }
}

/// How an attempt ended.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// A response arrived. Its body is not read yet.
    Answer {
        /// The status.
        status: StatusCode,
        /// The response headers.
        headers: &'a HeaderMap,
    },
    /// An error occurred instead of a response.
    Failure {
        /// The error.
        error: &'a Error,
        /// Whether the server may have processed the request.
        delivery: Delivery,
    },
}

/// Retries after temporary failures. The default [`Classify`].
///
/// | outcome | retried | backoff |
/// |---|---|---|
/// | 429, 529 | yes | throttled |
/// | 408, 500, 502, 503, 504, 520–524, 530 | yes | transient |
/// | any other status, such as 409, 501 and 505 | no | |
/// | a 4xx or 5xx with `x-should-retry: true` or `false` | as specified | by status |
/// | an attempt's timeout, a transport error | yes | transient |
/// | an untrusted certificate, a request that hyper-util's client rejects | no | |
/// | an error of another layer of this crate, such as the limiter | no | |
///
/// 520–524 and 530 come from a CDN that could not reach its origin, and 529 from an overloaded server. Contradictory
/// `x-should-retry` fields are ignored.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standard;

impl Standard {
    /// Returns the verdict, which does not depend on the request.
    pub(super) fn verdict(self, outcome: &Outcome<'_>) -> Verdict {
        match *outcome {
            Outcome::Answer { status, headers } => match should_retry(status, headers) {
                Some(true) => Verdict::Retry(Cause::of(status)),
                Some(false) => Verdict::NotRetryable,
                None => policy::classify(policy::Outcome::Answer(status)),
            },
            Outcome::Failure { error, delivery } => policy::classify(match outcome::is_lasting(error) {
                true => policy::Outcome::Fatal,
                false => policy::Outcome::Failure(delivery),
            }),
        }
    }
}

impl Classify for Standard {
    fn classify(&self, _: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        self.verdict(outcome)
    }
}

/// Reads `x-should-retry` of a 4xx or 5xx. Returns `None` unless all its fields agree on `true` or `false`.
pub(super) fn should_retry(status: StatusCode, headers: &HeaderMap) -> Option<bool> {
    if status.as_u16() < 400 {
        return None;
    }
    let mut said =
        headers.get_all("x-should-retry").iter().map(|value| match value.as_bytes().trim_ascii() {
            said if said.eq_ignore_ascii_case(b"true") => Some(true),
            said if said.eq_ignore_ascii_case(b"false") => Some(false),
            _ => None,
        });
    let first = said.next()?;
    first.filter(|_| said.all(|other| other == first))
}

/// See [`Classify::retry_on`] and [`Classify::never_on`].
#[derive(Debug, Clone, Copy)]
pub struct On<C> {
    inner: C,
    status: StatusCode,
    verdict: Verdict,
}

impl<C: Classify> Classify for On<C> {
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        match outcome {
            Outcome::Answer { status, .. } if *status == self.status => self.verdict,
            _ => self.inner.classify(request, outcome),
        }
    }
}

/// See [`Classify::when`].
#[derive(Clone, Copy)]
pub struct When<C, F> {
    inner: C,
    rule: F,
}

impl<C, F> Classify for When<C, F>
where
    C: Classify,
    F: Fn(&request::Parts, &Outcome<'_>) -> Option<Verdict> + Send + Sync,
{
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        (self.rule)(request, outcome).unwrap_or_else(|| self.inner.classify(request, outcome))
    }
}

impl<C: fmt::Debug, F> fmt::Debug for When<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("When").field("inner", &self.inner).finish_non_exhaustive()
    }
}

// Header values may be secrets.
impl fmt::Debug for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { status, .. } => {
                f.debug_struct("Answer").field("status", status).finish_non_exhaustive()
            }
            Self::Failure { error, delivery } => {
                f.debug_struct("Failure").field("error", error).field("delivery", delivery).finish()
            }
        }
    }
}
