use std::{error::Error as StdError, time::Duration};

use http::HeaderValue;

use super::{
    BoxError, ErrorKind, Reason, Refusal,
    chain::chain,
    redacted::{original, redact},
    transport,
};
use crate::call::{CallContext, Report};

/// A call that failed: its [kind](Self::kind), its cause and the [`Report`] of its attempts.
///
/// Every HTTP status is returned as `Ok`. `Err` means that no response arrived.
///
/// - `{}` shows the failure, the number of attempts and the request id: "connection refused after 3 attempts (request id
///   0199…)". `{:#}` adds the chain of causes.
/// - `{:?}` adds the stop reason, too, on one line, so that `main` may return the error.
/// - [`source`](std::error::Error::source) leads to the inner service's error, which can be downcast. An `Error` of an
///   inner layer is passed on and not wrapped again.
///
/// ```
/// use tower_outbound::{Error, ErrorKind};
///
/// fn describe(error: &Error) -> String {
///     match (error.kind(), error.retry_after()) {
///         (ErrorKind::RateLimited, Some(wait)) => format!("busy, free in {wait:?}"),
///         (ErrorKind::ConnectRefused, _) => "the service is down".to_owned(),
///         _ => error.to_string(),
///     }
/// }
/// ```
///
/// # Notes
///
/// - The server chooses the debug data of an HTTP/2 GOAWAY and the names in its certificate, and may repeat the key there.
///   An error that shows either is replaced by one that shows the reason only. `source()` does not lead to `h2::Error` or
///   `rustls::Error` then.
/// - A response's body keeps its own errors, such as hyper's, which show the debug data of a GOAWAY. The bodies of
///   [`Client`](crate::Client) and of [`IdleBody`](crate::body::IdleBody) do not show it.
pub struct Error {
    // Boxed, so that a `Result` with a response stays small.
    inner: Box<Inner>,
}

struct Inner {
    kind: Kind,
    source: Option<BoxError>,
    report: Option<Report>,
    maybe_processed: bool,
}

/// The failure with its data. [`ErrorKind`] is its public form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The limiter refused the request. Its [`Refusal`] is the source.
    RateLimited { wait: Option<Duration> },
    /// The request costs more than the limiter can ever grant. Its [`Refusal`] is the source.
    TooCostly,
    /// A timeout or the deadline was exceeded.
    Timeout { scope: Scope, limit: Duration },
    /// No data of the response's body arrived for `limit`.
    Stalled { limit: Duration },
    /// The credential could not be put on the request. Its source is called again after `again_in`.
    Auth { again_in: Option<Duration> },
    /// The request cannot be sent as it is.
    Request,
    /// The inner service failed.
    Service,
    /// The inner service failed before it was called.
    NotReady,
}

/// Whether the call's deadline or the attempt's timeout was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Call,
    Attempt,
}

impl Error {
    pub(crate) fn new(kind: Kind, source: impl Into<BoxError>) -> Self {
        let mut error = Self::without_source(kind);
        error.inner.source = Some(redact(source));
        error
    }

    pub(crate) fn refused(refusal: Refusal) -> Self {
        let kind = match refusal.reason() {
            Reason::TooCostly => Kind::TooCostly,
            _ => Kind::RateLimited { wait: refusal.wait() },
        };
        Self::new(kind, refusal)
    }

    pub(crate) fn timeout(scope: Scope, limit: Duration) -> Self {
        Self::without_source(Kind::Timeout { scope, limit })
    }

    pub(crate) fn without_source(kind: Kind) -> Self {
        Self { inner: Box::new(Inner { kind, source: None, report: None, maybe_processed: false }) }
    }

    /// Wraps an inner service's error. An `Error` is returned as it is.
    pub(crate) fn from_service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::new(Kind::Service, other),
        }
    }

    /// Wraps the error of an inner service that did not become ready. Nothing was sent.
    pub(crate) fn from_readiness(error: impl Into<BoxError>) -> Self {
        let mut error = Self::from_service(error);
        if error.inner.kind == Kind::Service {
            error.inner.kind = Kind::NotReady;
        }
        error
    }

    /// Marks the error of a call with an attempt that the server may have processed. The failure of the last attempt then
    /// proves nothing about the call.
    pub(crate) fn after_processing(mut self) -> Self {
        if self.inner.kind == Kind::NotReady {
            self.inner.kind = Kind::Service;
        }
        self.inner.maybe_processed = true;
        self
    }

    /// Returns whether [`after_processing`](Self::after_processing) marked the error.
    pub(crate) fn is_after_processing(&self) -> bool {
        self.inner.maybe_processed
    }

    /// Sets the report of the call, and replaces one of another call.
    pub(crate) fn with_report(mut self, report: Report) -> Self {
        self.inner.report = Some(report);
        self
    }

    /// Sets the report of the call, unless the error has one.
    pub(crate) fn reported(mut self, call: &CallContext) -> Self {
        self.inner.report.get_or_insert_with(|| call.report());
        self
    }

    /// Returns the failure with its data.
    pub(crate) fn failure(&self) -> Kind {
        self.inner.kind
    }

    /// Returns the inner service's own error, also if `source()` shows a redacted one. Must never be shown.
    pub(crate) fn original(&self) -> Option<&(dyn StdError + 'static)> {
        self.source().map(original)
    }

    /// Returns why the call failed, in one word.
    ///
    /// Each call reads the kind of a transport failure from the chain of causes.
    pub fn kind(&self) -> ErrorKind {
        match self.inner.kind {
            Kind::RateLimited { .. } => ErrorKind::RateLimited,
            Kind::TooCostly => ErrorKind::TooCostly,
            Kind::Stalled { .. } => ErrorKind::BodyTimeout,
            Kind::Timeout { scope: Scope::Call, .. } => ErrorKind::Deadline,
            Kind::Timeout { scope: Scope::Attempt, .. } => ErrorKind::AttemptTimeout,
            Kind::Auth { .. } => ErrorKind::Auth,
            Kind::Request => ErrorKind::InvalidRequest,
            Kind::Service => self.transport_kind(),
            Kind::NotReady => match self.transport_kind() {
                ErrorKind::Other => ErrorKind::NotReady,
                kind => kind,
            },
        }
    }

    fn transport_kind(&self) -> ErrorKind {
        let own = |error: &(dyn StdError + 'static)| error.downcast_ref().map(Self::kind);
        self.original().map_or(ErrorKind::Other, |error| transport::kind(error, own))
    }

    /// Finds an `Error` in an error and its causes.
    ///
    /// `as_ref()` passes a [`BoxError`], an `anyhow::Error` or an `eyre::Report`. `anyhow::Error::from_boxed` hides the error
    /// in its box.
    ///
    /// ```
    /// use tower_outbound::{BoxError, Error};
    ///
    /// fn report(error: &BoxError) {
    ///     match Error::find_in(error.as_ref()) {
    ///         Some(failed) => eprintln!("{}: {failed}", failed.kind()),
    ///         None => eprintln!("{error}"),
    ///     }
    /// }
    /// ```
    pub fn find_in<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// Returns whether the limiter refused the call. The attempt sent nothing and spent nothing.
    ///
    /// [`retry_after`](Self::retry_after) returns how long the call would have waited.
    pub fn is_rate_limited(&self) -> bool {
        matches!(self.inner.kind, Kind::RateLimited { .. })
    }

    /// Returns whether the limiter refused the attempt, for now or permanently.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.inner.kind, Kind::RateLimited { .. } | Kind::TooCostly)
    }

    /// Returns whether the service was not called: the limiter refused the attempt, or the service did not become
    /// ready.
    pub(crate) fn was_not_called(&self) -> bool {
        !self.inner.maybe_processed && (self.is_refusal() || self.inner.kind == Kind::NotReady)
    }

    /// Returns whether the deadline or an attempt's timeout was exceeded, or the response's body stalled.
    ///
    /// The server may have processed the request. A timeout of tower or of the connector below the layers is
    /// [`is_service`](Self::is_service), and its [`kind`](Self::kind) names it.
    pub fn is_timeout(&self) -> bool {
        matches!(self.inner.kind, Kind::Timeout { .. } | Kind::Stalled { .. })
    }

    /// Returns whether the total deadline of the call was exceeded, and not the timeout of one attempt or of a body.
    pub fn is_deadline(&self) -> bool {
        matches!(self.inner.kind, Kind::Timeout { scope: Scope::Call, .. })
    }

    /// Returns whether the credential could not be put on the request. Nothing was sent.
    pub fn is_auth(&self) -> bool {
        matches!(self.inner.kind, Kind::Auth { .. })
    }

    /// Returns whether a layer rejected the request itself, for example because its path leaves the base URL. Nothing
    /// was sent.
    pub fn is_invalid_request(&self) -> bool {
        matches!(self.inner.kind, Kind::Request)
    }

    /// Returns whether the service below the layers failed. [`kind`](Self::kind) returns why.
    pub fn is_service(&self) -> bool {
        matches!(self.inner.kind, Kind::Service | Kind::NotReady)
    }

    /// Returns the wait that the call would have needed, if it failed because that wait was too long.
    ///
    /// It is the wait for the limiter, for the next attempt, or until the key's source is called again after a failure.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.inner.kind {
            Kind::RateLimited { wait } => wait,
            Kind::Auth { again_in: Some(wait) } => Some(wait),
            _ => self.report().and_then(Report::retry_after),
        }
    }

    /// Returns the report of the call's attempts, if the stack has a layer of this crate that keeps one.
    pub fn report(&self) -> Option<&Report> {
        self.inner.report.as_ref()
    }

    /// Returns the id of the call, as sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report().and_then(Report::request_id)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_an_own_error_on_without_wrapping_it_again() {
        let inner = Error::timeout(Scope::Attempt, Duration::from_secs(1));
        let outer = Error::from_service(Box::new(inner) as BoxError);
        assert!(outer.is_timeout());
        assert!(outer.source().is_none());
    }

    #[test]
    fn keeps_a_foreign_error_for_a_downcast_from_the_source() {
        let error = Error::from_service(std::io::Error::other("broken"));
        assert!(error.is_service());
        assert!(error.source().unwrap().downcast_ref::<std::io::Error>().is_some());
        assert_eq!(error.to_string(), "service failed", "the cause is in source() alone");
        assert_eq!(format!("{error:#}"), "service failed: broken");
        assert_eq!(format!("{error:?}"), "service failed: broken");
    }
}
