use std::time::Duration;

use http::HeaderValue;

use crate::policy::{outcome::Outcome, retry::DelayReason};

/// The record of one attempt of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptReport {
    /// The number of this attempt, starting at 1.
    pub number: u32,
    /// The time from the start of the call to the start of this attempt.
    pub started: Duration,
    /// How long this attempt waited for the limiter.
    pub waited: Duration,
    /// The time from the start of the call to the end of this attempt. `None` if the attempt was cancelled.
    pub ended: Option<Duration>,
    /// How this attempt ended. `None` if it was cancelled.
    pub outcome: Option<Outcome>,
    /// The request id that the server sent with the response.
    pub server_request_id: Option<HeaderValue>,
    /// The delay before a retry that the server requested in its response. `None` if it requested no delay.
    pub requested_delay: Option<Duration>,
    /// The delay between this attempt and the next one. `None` if no attempt follows.
    pub delay: Option<Duration>,
    /// What determined the length of `delay`.
    pub delay_reason: Option<DelayReason>,
}

/// The attempts of a call. The first attempt, which is the only one of most calls, needs no allocation.
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

    /// Returns the number of the latest attempt, or 0 before the first.
    pub(super) fn number(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AttemptReport> {
        self.earlier.iter().chain(&self.last)
    }
}
