use std::time::Duration;

use http::HeaderValue;

use crate::policy::{outcome::Outcome, retry::DelayReason};

/// One attempt of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptReport {
    /// The number of the attempt, from 1.
    pub number: u32,
    /// When the attempt started, counted from the start of the call.
    pub started: Duration,
    /// How long the attempt waited for the limiter.
    pub waited: Duration,
    /// When the attempt ended, counted from the start of the call. `None` if it was cancelled.
    pub ended: Option<Duration>,
    /// How the attempt ended. `None` if it was cancelled.
    pub outcome: Option<Outcome>,
    /// The server's own id of the response.
    pub server_request_id: Option<HeaderValue>,
    /// The delay that the server requested in the response.
    pub requested_delay: Option<Duration>,
    /// The delay before the next attempt, if there was one.
    pub delay: Option<Duration>,
    /// Why that delay had its length.
    pub delay_reason: Option<DelayReason>,
}

/// The attempts of a call. Most calls have one, which needs no allocation.
#[derive(Default)]
pub(super) struct Attempts {
    earlier: Vec<AttemptReport>,
    pub(super) last: Option<AttemptReport>,
}

impl Attempts {
    pub(super) fn start(&mut self, started: Duration) {
        let number = self.number().saturating_add(1);
        let attempt = AttemptReport { number, started, ..AttemptReport::default() };
        self.earlier.extend(self.last.replace(attempt));
    }

    /// Returns the number of the last attempt, or 0 before the first.
    pub(super) fn number(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AttemptReport> {
        self.earlier.iter().chain(&self.last)
    }
}
