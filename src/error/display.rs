//! Formats an [`Error`], and finds its causes.

use std::{error::Error as StdError, fmt, time::Duration};

use super::{
    ErrorKind,
    call::Error,
    chain::{chain, write_causes},
};
use crate::call::{Report, StopReason};

impl Error {
    /// Writes the failure and the number of attempts, then the stop reason and the request id in parentheses.
    fn write(&self, stop: Option<StopReason>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind(), self.inner.time.map(rounded)) {
            (ErrorKind::Deadline, Some(limit)) => {
                let setting = self.report().map_or("deadline", Report::deadline_source);
                write!(f, "{setting} of {limit:?} exceeded")
            }
            (ErrorKind::ConnectTimeout, Some(limit)) => write!(f, "no connection within {limit:?}"),
            (ErrorKind::AttemptTimeout, Some(limit)) => write!(f, "no response within {limit:?}"),
            (ErrorKind::BodyTimeout, Some(limit)) => write!(f, "response body stalled for {limit:?}"),
            (kind, _) => f.write_str(kind.texts().1),
        }?;
        let attempts = self.report().map_or(0, Report::attempt_count);
        if attempts > 1 {
            write!(f, " after {attempts} attempts")?;
        }
        if let Some(source) = self.inner.source.as_ref().filter(|_| self.inner.shows_source) {
            write!(f, ": {source}")?;
        }
        let stop = stop.map(|stop| stop.as_str().to_owned());
        let id = self.request_id().and_then(|id| Some(format!("request id {}", id.to_str().ok()?)));
        let notes: Vec<_> = stop.into_iter().chain(id).collect();
        if notes.is_empty() { Ok(()) } else { write!(f, " ({})", notes.join(", ")) }
    }
}

/// Rounds a time limit to milliseconds for the message. A measured limit, such as the time until a deadline, includes
/// nanoseconds.
fn rounded(limit: Duration) -> Duration {
    if limit < Duration::from_millis(1) {
        return limit;
    }
    let millis = limit.saturating_add(Duration::from_micros(500)).as_millis();
    u64::try_from(millis).map_or(limit, Duration::from_millis)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(None, f)?;
        if f.alternate() { write_causes(self, f) } else { Ok(()) }
    }
}

/// Writes the message, the stop reason and the causes on one line, because the standard library prints this text if
/// `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(self.report().and_then(Report::stop_reason), f)?;
        write_causes(self, f)
    }
}

impl Error {
    /// Returns the cause that the message shows, if it has the type `E`: a [`Refusal`](super::Refusal) of the limiter,
    /// a [`KeyError`](crate::auth::KeyError), or a [`BodyTooLarge`](crate::body::BodyTooLarge) of a signature.
    ///
    /// ```
    /// use tower_outbound::{Error, error::{Reason, Refusal}};
    ///
    /// fn is_queue_full(error: &Error) -> bool {
    ///     error.shown_cause::<Refusal>().is_some_and(|refusal| refusal.reason() == Reason::QueueFull)
    /// }
    /// ```
    pub fn shown_cause<E: StdError + 'static>(&self) -> Option<&E> {
        self.inner.source.as_deref().filter(|_| self.inner.shows_source)?.downcast_ref()
    }

    /// Finds an `Error` in `error` or its causes.
    ///
    /// Call `as_ref()` on a [`BoxError`](super::BoxError), an `anyhow::Error` or an `eyre::Report` and pass the result.
    /// The method cannot look into an error that `anyhow::Error::from_boxed` has made.
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
        chain(error).find_map(Self::of_call)
    }

    /// Returns `error` if it is an `Error`, or the `Error` of a `ResponseError`, whose `source()` omits it.
    pub(super) fn of_call<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        #[cfg(feature = "client")]
        if let Some(call) = Self::of_response(error) {
            return Some(call);
        }
        error.downcast_ref()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.inner.source.as_deref()?;
        if self.inner.shows_source { source.source() } else { Some(source) }
    }
}
