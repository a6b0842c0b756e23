use std::{error::Error as _, fmt, time::Duration};

use http::HeaderValue;

use super::{BoxError, Reason, Refusal};
use crate::call::{Call, Report};

/// A call that failed: what kind of failure, the cause in [`source`](std::error::Error::source), and the
/// [`Report`] of the attempts that were made.
///
/// Opaque: ask it with the predicates. An answer of the server, whatever its status, is a response and never
/// this error. An inner service's error is kept whole, so that `source()` leads to it and can be downcast; an
/// `Error` from a layer further in is passed on and not wrapped again. `{}` shows the failure, `{:#}` the whole
/// chain of causes after it.
///
/// ```
/// use tower_outbound::Error;
///
/// fn describe(error: &Error) -> String {
///     match error.retry_after() {
///         Some(wait) if error.is_rate_limited() => format!("busy, free in {wait:?}"),
///         _ if error.is_timeout() => "too slow".to_owned(),
///         _ => error.to_string(),
///     }
/// }
/// ```
pub struct Error {
    // One word wide, so that a `Result` of a response stays no larger for it.
    inner: Box<Inner>,
}

struct Inner {
    kind: Kind,
    source: Option<BoxError>,
    report: Option<Report>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The limiter refused; its [`Refusal`] is the source.
    RateLimited { wait: Option<Duration> },
    /// It costs more than the limiter can ever give; its [`Refusal`] is the source.
    TooCostly,
    /// Time ran out.
    Timeout { scope: Scope, part: Part, limit: Duration },
    /// The credential could not be put on the request; `again_in` when its source is asked again, if it is.
    Auth { again_in: Option<Duration> },
    /// The request can't be sent as it is.
    Request,
    /// The inner service failed.
    Service,
    /// The inner service failed before it was called.
    NotReady,
}

/// Which of the two timeouts ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Call,
    Attempt,
}

/// Which part of the answer was waited for in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Head,
    Body,
}

impl Error {
    pub(crate) fn new(kind: Kind, source: impl Into<BoxError>) -> Self {
        Self { inner: Box::new(Inner { kind, source: Some(source.into()), report: None }) }
    }

    pub(crate) fn refused(refusal: Refusal) -> Self {
        let kind = match refusal.reason() {
            Reason::TooCostly => Kind::TooCostly,
            _ => Kind::RateLimited { wait: refusal.wait() },
        };
        Self::new(kind, refusal)
    }

    pub(crate) fn timeout(scope: Scope, limit: Duration) -> Self {
        Self::without_source(Kind::Timeout { scope, part: Part::Head, limit })
    }

    /// The body of an answer stood still for `limit`, which bounds its attempt and not the call.
    pub(crate) fn stalled(limit: Duration) -> Self {
        Self::without_source(Kind::Timeout { scope: Scope::Attempt, part: Part::Body, limit })
    }

    /// A timeout that is not of our layers bounded the attempt.
    #[cfg(feature = "reqwest")]
    pub(crate) fn timed_out(limit: Duration, source: impl Into<BoxError>) -> Self {
        Self::new(Kind::Timeout { scope: Scope::Attempt, part: Part::Head, limit }, source)
    }

    fn without_source(kind: Kind) -> Self {
        Self { inner: Box::new(Inner { kind, source: None, report: None }) }
    }

    /// What an inner service failed with; our own error comes back as it was.
    pub(crate) fn from_service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::new(Kind::Service, other),
        }
    }

    /// What an inner service failed with instead of becoming ready: nothing was sent.
    pub(crate) fn from_readiness(error: impl Into<BoxError>) -> Self {
        let mut error = Self::from_service(error);
        if error.inner.kind == Kind::Service {
            error.inner.kind = Kind::NotReady;
        }
        error
    }

    /// Of a call that was sent before: what it says of readiness is no proof any more that nothing was.
    pub(crate) fn after_sending(mut self) -> Self {
        if self.inner.kind == Kind::NotReady {
            self.inner.kind = Kind::Service;
        }
        self
    }

    /// Adds the report of the call, in place of one that another call may have left in it.
    pub(crate) fn with_report(mut self, report: Report) -> Self {
        self.inner.report = Some(report);
        self
    }

    /// With the call's report, where it has none.
    pub(crate) fn reported(mut self, call: &Call) -> Self {
        self.inner.report.get_or_insert_with(|| call.report());
        self
    }

    pub(crate) fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The limiter refused the call: [`retry_after`](Self::retry_after) says how long it would have waited.
    /// Nothing was sent by this attempt and nothing was spent.
    pub fn is_rate_limited(&self) -> bool {
        matches!(self.inner.kind, Kind::RateLimited { .. })
    }

    /// The limiter refused the attempt, for now or for good.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.inner.kind, Kind::RateLimited { .. } | Kind::TooCostly)
    }

    /// The service was not called: the limiter refused the attempt, or the service did not get ready for it.
    pub(crate) fn was_not_called(&self) -> bool {
        self.is_refusal() || self.inner.kind == Kind::NotReady
    }

    /// The request costs more permits than its limiter can ever give: no wait helps. Nothing was sent.
    pub fn is_too_costly(&self) -> bool {
        matches!(self.inner.kind, Kind::TooCostly)
    }

    /// The total deadline or an attempt's timeout ran out, or the body of the answer stood still for as long as it
    /// may. The server may have processed the request.
    pub fn is_timeout(&self) -> bool {
        matches!(self.inner.kind, Kind::Timeout { .. })
    }

    /// The total deadline of the call ran out, as against one attempt's timeout or that of a body.
    pub fn is_deadline(&self) -> bool {
        matches!(self.inner.kind, Kind::Timeout { scope: Scope::Call, .. })
    }

    /// The credential could not be put on the request, so nothing was sent.
    pub fn is_auth(&self) -> bool {
        matches!(self.inner.kind, Kind::Auth { .. })
    }

    /// The request can't be sent as it is, such as a path that leaves the base URL. Nothing was sent.
    pub fn is_invalid_request(&self) -> bool {
        matches!(self.inner.kind, Kind::Request)
    }

    /// The service under the layers failed: a connection refused, reset, or an answer that was not HTTP.
    pub fn is_service(&self) -> bool {
        matches!(self.inner.kind, Kind::Service | Kind::NotReady)
    }

    /// How long the call would have had to wait, when that is why it failed: for the limiter, before its next attempt, or
    /// until the source of its key is asked again after a failure.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.inner.kind {
            Kind::RateLimited { wait } => wait,
            Kind::Auth { again_in: Some(wait) } => Some(wait),
            _ => self.report().and_then(Report::retry_after),
        }
    }

    /// What was attempted before the failure, when a layer of this crate that keeps a report was in the stack.
    pub fn report(&self) -> Option<&Report> {
        self.inner.report.as_ref()
    }

    /// The id of the call, as it was sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report().and_then(Report::request_id)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.kind {
            Kind::RateLimited { .. } => f.write_str("refused by the rate limit"),
            Kind::TooCostly => f.write_str("the request can never fit in the rate limit"),
            Kind::Timeout { part: Part::Body, limit, .. } => {
                write!(f, "the body of the answer stood still for {limit:?}")
            }
            Kind::Timeout { scope: Scope::Call, limit, .. } => {
                write!(f, "the call did not finish within {limit:?}")
            }
            Kind::Timeout { scope: Scope::Attempt, limit, .. } => {
                write!(f, "the attempt got no answer within {limit:?}")
            }
            Kind::Auth { .. } => f.write_str("the credential was not sent"),
            Kind::Request => f.write_str("the request can't be sent"),
            Kind::Service => f.write_str("the service failed"),
            Kind::NotReady => f.write_str("the service did not get ready"),
        }?;
        let mut cause = self.source().filter(|_| f.alternate());
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("source", &self.inner.source)
            .field("report", &self.inner.report)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_error_is_passed_on_and_not_wrapped_again() {
        let inner = Error::timeout(Scope::Attempt, Duration::from_secs(1));
        let outer = Error::from_service(Box::new(inner) as BoxError);
        assert!(outer.is_timeout());
        assert!(outer.source().is_none());
    }

    #[test]
    fn a_foreign_error_can_be_downcast_from_the_source() {
        let error = Error::from_service(std::io::Error::other("broken"));
        assert!(error.is_service());
        assert!(error.source().unwrap().downcast_ref::<std::io::Error>().is_some());
        assert_eq!(error.to_string(), "the service failed", "the cause is in source() alone");
        assert_eq!(format!("{error:#}"), "the service failed: broken");
    }
}
