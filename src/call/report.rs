use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderValue, Response};

use super::{Attempt, Ended, shared::Shared};
#[cfg(feature = "json")]
use crate::clock::Instant;

/// What happened in a call: read from `response.extensions().get::<Report>()` or
/// [`Error::report`](crate::Error::report).
///
/// A handle on shared data, so cheap to clone and to keep. Holds no key and no body.
#[derive(Clone)]
pub struct Report {
    pub(super) shared: Arc<Shared>,
}

impl Report {
    /// The longest id of a server's that is kept, in bytes; those that are known have up to 100.
    pub const MAX_SERVER_REQUEST_ID: usize = 256;

    /// The report in an answer; none when no layer that keeps one was in the stack. For an error it is
    /// [`Error::report`](crate::Error::report).
    pub fn of<B>(response: &Response<B>) -> Option<&Self> {
        response.extensions().get()
    }

    /// The name of the service that was called, where the request id layer was given one.
    pub fn service(&self) -> Option<&'static str> {
        self.shared.identity(|identity| identity?.service)
    }

    /// The id of the call, as it was sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        self.shared.identity(|identity| Some(identity?.request_id.clone()))
    }

    /// The id that the server gave its last answer that had one, from the first of the known headers. A header that
    /// repeats the key that was sent, or that is marked sensitive, is none of them, and neither is one of more than
    /// [`MAX_SERVER_REQUEST_ID`](Self::MAX_SERVER_REQUEST_ID) bytes.
    pub fn server_request_id(&self) -> Option<HeaderValue> {
        self.shared.state().server_request_id.clone()
    }

    /// The time by which the call was to be over, and how long after its start that is.
    #[cfg(feature = "json")]
    pub(crate) fn deadline(&self) -> Option<(Instant, Duration)> {
        let deadline = self.shared.deadline()?;
        Some((deadline, deadline.saturating_duration_since(self.shared.started)))
    }

    /// The attempts made, first to last. Empty when no retry layer is in the stack.
    pub fn attempts(&self) -> Vec<Attempt> {
        self.shared.state().attempts.iter().cloned().collect()
    }

    /// The last of them.
    pub(crate) fn last_attempt(&self) -> Option<Attempt> {
        self.shared.state().attempts.last().cloned()
    }

    /// How many attempts were made.
    pub fn attempt_count(&self) -> usize {
        self.shared.state().attempts.len()
    }

    /// The time that all attempts together waited for the limiter.
    pub fn waited(&self) -> Duration {
        self.shared.state().waited
    }

    /// How long the wait before the next attempt would have been, where it was too long: for the deadline, or longer
    /// than the server may ask. Counted from the end of the last attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        self.shared.state().retry_after
    }

    /// Why no further attempt was made; none while the call runs, and when it was cut off.
    pub fn ended(&self) -> Option<Ended> {
        self.shared.ended()
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Report", f)
    }
}

impl Report {
    pub(super) fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (service, request_id) = (self.service(), self.request_id());
        let state = self.shared.state();
        f.debug_struct(name)
            .field("service", &service)
            .field("request_id", &request_id)
            .field("server_request_id", &state.server_request_id)
            .field("waited", &state.waited)
            .field("attempts", &state.attempts)
            .field("ended", &self.ended())
            .finish()
    }
}
