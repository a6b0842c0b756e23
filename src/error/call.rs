#[cfg(test)]
mod tests;

use std::time::Duration;

use http::HeaderValue;

use super::{
    BoxError, ErrorKind, Reason, Refusal,
    chain::redact,
    delivery::{NEVER_SENT, NOT_SENT, Proof},
};
use crate::call::{CallContext, Report};

/// The error of a failed call: its [kind](Self::kind), its cause and the [`Report`] of its attempts.
///
/// Every HTTP status is returned as `Ok`. `Err` means that no response arrived.
///
/// - `{}` shows the failure, the number of attempts and the request id: "connection refused after 3 attempts (request
///   id 0199…)". If this crate states the cause, `{}` shows it, too: "invalid request: path `/../up`: …". The text of
///   another crate's error may contain a secret, so `{}` does not show it, except for a
///   body that cannot be serialized to JSON. `{:#}` adds the chain of these causes.
/// - `{:?}` also adds the stop reason. Its output is one line, so that `main` may return the error.
/// - [`source`](std::error::Error::source) returns the first cause that `{}` does not show, so no text appears twice in
///   a printed chain. This is the inner service's error, which can be downcast.
///   [`shown_cause`](Self::shown_cause) returns the cause that `{}` shows. An `Error` that an inner layer of this crate
///   returned is passed on without another wrapper.
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
/// - An HTTP/2 GOAWAY contains debug data, and a certificate contains names. The server chooses both, and may repeat
///   the key in them. An error that shows this data or these names is replaced by an error that shows only the reason.
///   The chain of `source()` then contains neither `h2::Error` nor `rustls::Error`.
/// - The body of a response returns its own errors. The errors of hyper's body show the debug data of a GOAWAY. The
///   errors of [`Client`](crate::Client)'s body and of [`IdleBody`](crate::body::IdleBody) do not show it.
pub struct Error {
    // The fields are boxed, so that a `Result` with a response stays small.
    pub(super) inner: Box<Inner>,
}

pub(super) struct Inner {
    kind: ErrorKind,
    pub(super) failed: Failed,
    /// The limit of a timeout, or the wait that the call would have needed.
    pub(super) time: Option<Duration>,
    pub(super) source: Option<BoxError>,
    /// Whether the message contains that of `source`, which is therefore not a cause of its own.
    pub(super) shows_source: bool,
    report: Option<Report>,
    maybe_processed: bool,
    /// Whether [`of_body`](Error::of_body) has created the error.
    #[cfg(feature = "client")]
    pub(super) of_body: bool,
}

/// The part of the stack in which the call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// A layer of this crate.
    Layer,
    /// A timeout of this crate, before the request was sent.
    Unsent,
    /// The inner service failed before it was called.
    Readiness,
    /// The inner service failed after it was called. `Proof` is what the error proves about the delivery.
    Service(Proof),
}

impl Error {
    /// Creates the error of a layer of this crate. `time` is the limit of a timeout, or the wait that the call would
    /// have needed.
    pub(crate) fn new(kind: ErrorKind, time: Option<Duration>, source: Option<BoxError>) -> Self {
        Self::of(Failed::Layer, kind, time, source)
    }

    pub(crate) fn of(
        failed: Failed,
        kind: ErrorKind,
        time: Option<Duration>,
        source: Option<BoxError>,
    ) -> Self {
        let source = source.map(redact);
        Self {
            inner: Box::new(Inner {
                kind,
                failed,
                time,
                source,
                shows_source: false,
                report: None,
                maybe_processed: false,
                #[cfg(feature = "client")]
                of_body: false,
            }),
        }
    }

    /// Adds the source to the message. The source must be an error or a sentence of this crate, without a secret.
    pub(crate) fn showing_source(mut self) -> Self {
        self.inner.shows_source = true;
        self
    }

    /// Creates the error of an attempt whose timeout expired while it waited for a new connection.
    pub(crate) fn not_connected_within(limit: Duration) -> Self {
        Self::of(Failed::Service(NOT_SENT), ErrorKind::ConnectTimeout, Some(limit), None)
    }

    /// Marks the error of a timeout that expired before the request was sent.
    pub(crate) fn not_sent(mut self) -> Self {
        self.inner.failed = Failed::Unsent;
        self
    }

    /// Returns whether the error proves that no attempt was sent.
    pub(crate) fn proves_not_sent(&self) -> bool {
        let is_unsent = match self.failed() {
            Failed::Layer => !self.is_timeout(),
            Failed::Unsent | Failed::Readiness => true,
            Failed::Service(proof) => proof.not_sent,
        };
        is_unsent && !self.is_after_processing()
    }

    /// Creates the error of a request that is invalid and was not sent.
    pub(crate) fn invalid_request(source: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::InvalidRequest, None, Some(source.into())).showing_source()
    }

    pub(crate) fn refused(refusal: Refusal) -> Self {
        let kind = match refusal.reason() {
            Reason::TooCostly { .. } => ErrorKind::TooCostly,
            _ => ErrorKind::RateLimited,
        };
        Self::new(kind, refusal.wait(), Some(refusal.into())).showing_source()
    }

    /// Wraps the error of an inner service that did not become ready. Nothing was sent.
    pub(crate) fn from_readiness(error: impl Into<BoxError>) -> Self {
        let mut error = Self::from_service(error);
        error.inner.failed = match error.failed() {
            Failed::Service(Proof { lasting: true, .. }) => Failed::Service(NEVER_SENT),
            Failed::Service(_) => Failed::Readiness,
            failed => failed,
        };
        if error.is_service() && error.kind() == ErrorKind::Other {
            error.inner.kind = ErrorKind::NotReady;
        }
        error
    }

    /// Returns the error that [`of_body`](Self::of_body) has wrapped. Returns any other error as `Err`.
    #[cfg(feature = "client")]
    pub(crate) fn into_body_error(mut self) -> Result<BoxError, Self> {
        let source = if self.inner.of_body { self.inner.source.take() } else { None };
        source.ok_or(self)
    }

    /// Marks the error of a call in which the server may have processed an attempt. The error of the last attempt then
    /// proves nothing about the whole call.
    pub(crate) fn set_after_processing(&mut self) {
        self.inner.maybe_processed = true;
    }

    /// Returns whether [`set_after_processing`](Self::set_after_processing) marked the error.
    pub(crate) fn is_after_processing(&self) -> bool {
        self.inner.maybe_processed
    }

    /// Sets the report of the call, and replaces any report that the error already has.
    pub(crate) fn set_report(&mut self, report: Report) {
        self.inner.report = Some(report);
    }

    /// Sets the report of the call, unless the error already has a report.
    pub(crate) fn add_report(&mut self, call: &CallContext) {
        self.inner.report.get_or_insert_with(|| call.report());
    }

    /// Returns the part of the stack in which the call failed.
    pub(crate) fn failed(&self) -> Failed {
        self.inner.failed
    }

    /// Returns `true` if a layer of this crate returned this error, and its kind is one of `kinds`.
    fn is(&self, kinds: &[ErrorKind]) -> bool {
        !self.is_service() && kinds.contains(&self.inner.kind)
    }

    /// Returns the reason of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns whether the limiter refused the call. The refused attempt was not sent and took no permits.
    ///
    /// [`retry_after`](Self::retry_after) returns how long the call would have waited.
    pub fn is_rate_limited(&self) -> bool {
        self.is(&[ErrorKind::RateLimited])
    }

    /// Returns whether the limiter refused the attempt, for now or permanently.
    pub(crate) fn is_refusal(&self) -> bool {
        self.is(&[ErrorKind::RateLimited, ErrorKind::TooCostly])
    }

    /// Returns `true` if the inner service was not called, because the limiter refused the attempt or the service did
    /// not become ready.
    pub(crate) fn was_not_called(&self) -> bool {
        !self.inner.maybe_processed && (self.is_refusal() || self.inner.failed == Failed::Readiness)
    }

    /// Returns `true` if the deadline or an attempt's timeout was exceeded, if the body of the response stalled, or if
    /// the kind is [`ConnectTimeout`](ErrorKind::ConnectTimeout).
    ///
    /// After a timeout, the server [may have processed](Self::may_have_been_processed) the request. For a
    /// `ConnectTimeout`, [`is_service`](Self::is_service) also returns `true`. Other timeouts count only if a layer of
    /// this crate returned them. For a timeout of a tower layer below, this method returns `false`, and `is_service`
    /// returns `true`. [`kind`](Self::kind) distinguishes the timeouts.
    pub fn is_timeout(&self) -> bool {
        self.inner.kind == ErrorKind::ConnectTimeout
            || self.is(&[ErrorKind::AttemptTimeout, ErrorKind::Deadline, ErrorKind::BodyTimeout])
    }

    /// Returns whether the total deadline of the call was exceeded, as opposed to the timeout of an attempt or of a
    /// body.
    pub fn is_deadline(&self) -> bool {
        self.is(&[ErrorKind::Deadline])
    }

    /// Returns whether the credential could not be attached to the request. Nothing was sent.
    pub fn is_auth(&self) -> bool {
        self.is(&[ErrorKind::Auth])
    }

    /// Returns whether a layer rejected the request as invalid, for example because its path leaves the base URL.
    /// Nothing was sent.
    pub fn is_invalid_request(&self) -> bool {
        self.is(&[ErrorKind::InvalidRequest])
    }

    /// Returns whether the service below the layers failed. [`kind`](Self::kind) returns why.
    pub fn is_service(&self) -> bool {
        !matches!(self.inner.failed, Failed::Layer | Failed::Unsent)
    }

    /// Returns the wait that the call would have needed, if it failed because this wait was too long.
    ///
    /// This is the wait for the limiter, the rest of a delay that the server requested, the delay before the next
    /// attempt, or the time until a failed key source is called again.
    pub fn retry_after(&self) -> Option<Duration> {
        let own = self.inner.time.filter(|_| !self.is_timeout() && !self.is_service());
        own.or_else(|| self.report()?.retry_after())
    }

    /// Returns the report of the call's attempts, if a layer of this crate has recorded one.
    pub fn report(&self) -> Option<&Report> {
        self.inner.report.as_ref()
    }

    /// Returns the id of the call, which is sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.report().and_then(Report::request_id)
    }
}

impl Error {
    /// Returns whether the server may have processed the request. Returns `false` only if the call proves that the
    /// server processed no attempt. Check it before you send a payment again in another call.
    ///
    /// The result is `true` if it is `true` for at least one attempt, even if a later attempt was not sent:
    ///
    /// | how an attempt ended | may have been processed |
    /// |---|---|
    /// | `RateLimited`, `TooCostly`, `Auth` | no |
    /// | `NotReady`, `CircuitOpen`, `InvalidRequest` | no, if this crate or the service itself returned the error; yes inside another error |
    /// | `Dns`, `ConnectRefused`, `ConnectTimeout`, `Connect`, `Proxy`, `Tls` | no, if the error [proves](crate::retry#notes) that there was no connection. The errors of [`Client`](crate::Client), hyper-util and reqwest do |
    /// | `AttemptTimeout`, `Deadline` | no, if the attempt waited for a connection, or if the deadline passed before it; otherwise yes |
    /// | `Reset`, `Closed`, `Protocol`, `Body`, `Other` | yes, unless the error [proves](crate::retry#notes) that the request was not sent |
    /// | `BodyTimeout`, a response body that broke | yes |
    /// | a [rejected](crate::call::Delivery#rejected-requests) request, such as a 429 | no |
    /// | a 401 after which the call is [resent with another key](crate::retry#after-a-401) | no |
    /// | any other response, such as the last 401 of a call or a 500 | yes |
    /// | the caller dropped it, or it ended together with the call | yes |
    ///
    /// ```
    /// use tower_outbound::Error;
    ///
    /// /// Returns whether a payment may be sent again with another idempotency key.
    /// fn may_repeat(error: &Error) -> bool {
    ///     !error.may_have_been_processed()
    /// }
    /// # let _ = may_repeat;
    /// ```
    ///
    /// # Notes
    ///
    /// - The result covers all requests that the outer layers of a client send for the call, such as the hops of a
    ///   redirect.
    /// - Without the retry layer of this crate, the result depends on the last error alone. It then does not cover the
    ///   earlier attempts of another retry layer.
    pub fn may_have_been_processed(&self) -> bool {
        let own = !self.proves_not_sent();
        self.is_after_processing() || self.report().map_or(own, |report| report.was_processed(own))
    }
}
