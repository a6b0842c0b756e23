use std::{fmt, time::Duration};

use http::HeaderValue;

use crate::policy::{outcome::Outcome, retry::DelayReason};

/// One attempt of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptReport {
    pub(super) number: u32,
    pub(super) started: Duration,
    pub(super) waited: Duration,
    pub(super) ended: Option<Duration>,
    pub(super) outcome: Option<Outcome>,
    pub(super) server_request_id: Option<HeaderValue>,
    pub(super) asked: Option<Duration>,
    pub(super) delay: Option<(Duration, DelayReason)>,
}

impl AttemptReport {
    /// Returns the number of the attempt, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns when the attempt started, counted from the start of the call.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// Returns when the attempt ended, counted from the start of the call. `None` if it was cancelled.
    pub fn ended(&self) -> Option<Duration> {
        self.ended
    }

    /// Returns how long the attempt waited for the limiter.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns how the attempt ended. `None` if it was cancelled.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Returns the server's own id of the response.
    pub fn server_request_id(&self) -> Option<&HeaderValue> {
        self.server_request_id.as_ref()
    }

    /// Returns the delay that the server requested in the response.
    pub fn asked(&self) -> Option<Duration> {
        self.asked
    }

    /// Returns the delay before the next attempt, if there was one.
    pub fn delay(&self) -> Option<Duration> {
        self.delay.map(|(delay, _)| delay)
    }

    /// Returns why that delay had its length.
    pub fn delay_reason(&self) -> Option<DelayReason> {
        self.delay.map(|(_, reason)| reason)
    }
}

/// The attempts of a call. Most calls have one, which needs no allocation.
#[derive(Default)]
pub(super) struct Attempts {
    first: Option<AttemptReport>,
    later: Vec<AttemptReport>,
}

impl Attempts {
    pub(super) fn start(&mut self, started: Duration) {
        let number = self.last().map_or(1, |last| last.number.saturating_add(1));
        let attempt = AttemptReport { number, started, ..AttemptReport::default() };
        match self.first {
            None => self.first = Some(attempt),
            Some(_) => self.later.push(attempt),
        }
    }

    pub(super) fn last(&self) -> Option<&AttemptReport> {
        self.later.last().or(self.first.as_ref())
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut AttemptReport> {
        self.later.last_mut().or(self.first.as_mut())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AttemptReport> {
        self.first.iter().chain(&self.later)
    }
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
