//! Formats an [`Error`].

use std::{fmt, time::Duration};

use super::{ErrorKind, call::Error, chain::write_causes};
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
