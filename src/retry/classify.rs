use std::{fmt, sync::Arc};

use http::{HeaderMap, StatusCode, request};

use super::outcome;
use crate::{
    error::Error,
    policy::{self, Cause, Sent, Verdict},
};

/// Says whether another attempt would help after the outcome of one.
///
/// Whether it would do harm is not asked, and can't be overruled here: a request that may have been processed is
/// sent again only when its method is idempotent, it has an idempotency key that the server honours, or you said
/// [`PerRequest::idempotent`](super::PerRequest::idempotent) or
/// [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent). A 101 is never asked about.
///
/// [`Standard`] is the default, [`Grpc`](super::Grpc) is for gRPC. The methods of this trait put rules of your own before a classifier; the one that
/// was said last is asked first.
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
///     // Some services throttle by a 403.
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
    /// The verdict on the outcome of an attempt of this request, which is the request as it was before the attempt.
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict;

    /// Tries an answer of this status again: after a 429 with the longer back-off.
    fn retry_on(self, status: StatusCode) -> On<Self>
    where
        Self: Sized,
    {
        On { inner: self, status, verdict: Verdict::Retry(Cause::of(status)) }
    }

    /// Hands an answer of this status over as it is.
    fn never_on(self, status: StatusCode) -> On<Self>
    where
        Self: Sized,
    {
        On { inner: self, status, verdict: Verdict::NotRetryable }
    }

    /// Asks `rule` first, and goes on where it says nothing.
    fn when<F>(self, rule: F) -> When<Self, F>
    where
        Self: Sized,
        F: Fn(&request::Parts, &Outcome<'_>) -> Option<Verdict> + Send + Sync,
    {
        When { inner: self, rule }
    }
}

/// One that was chosen at run time.
impl<C: Classify + ?Sized> Classify for Arc<C> {
    fn classify(&self, request: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        C::classify(self, request, outcome)
    }
}

/// How an attempt ended.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// With an answer, whose body is not read yet.
    Answer {
        /// Its status.
        status: StatusCode,
        /// Its header fields.
        headers: &'a HeaderMap,
    },
    /// Without one.
    Failure {
        /// What it failed with.
        error: &'a Error,
        /// Whether the server can have seen the request.
        sent: Sent,
    },
}

/// Tries again after 408, 429, 500, 502, 503 and 504, after an attempt's timeout, and when transport failed; what the
/// server says in `x-should-retry` on a 4xx or 5xx goes before the status.
///
/// Not after a refusal by a layer of this crate, nor where the next attempt would meet the same wrong certificate, or
/// hyper-util's client refused the request itself, for its version, say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standard;

impl Standard {
    /// Whatever the request.
    pub(super) fn verdict(self, outcome: &Outcome<'_>) -> Verdict {
        match *outcome {
            Outcome::Answer { status, headers } => match should_retry(status, headers) {
                Some(true) => Verdict::Retry(Cause::of(status)),
                Some(false) => Verdict::NotRetryable,
                None => policy::classify(policy::Outcome::Answer(status)),
            },
            Outcome::Failure { error, sent } => policy::classify(match outcome::is_lasting(error) {
                true => policy::Outcome::Fatal,
                false => policy::Outcome::Failure(sent),
            }),
        }
    }
}

impl Classify for Standard {
    fn classify(&self, _: &request::Parts, outcome: &Outcome<'_>) -> Verdict {
        self.verdict(outcome)
    }
}

/// What the server says of a failure; nothing when it says neither or both.
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
            Self::Failure { error, sent } => {
                f.debug_struct("Failure").field("error", error).field("sent", sent).finish()
            }
        }
    }
}
