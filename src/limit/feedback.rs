use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

use crate::policy::{
    self,
    rate_limit::{Remaining, RemainingList},
};

/// What an answer says of the server's limits: a pause that it asks for, and what it has left.
#[derive(Debug, Clone, Default)]
pub struct Feedback {
    pause: Option<Duration>,
    remaining: RemainingList,
}

impl Feedback {
    /// Reads the head of an answer; none when it says nothing.
    ///
    /// `Retry-After` counts where the server takes no request, whoever's: on other statuses it speaks
    /// of this one resource, a redirect or a job that is not done yet. What is left counts on every answer. A gRPC
    /// server asks by `grpc-retry-pushback-ms`, and counts in the same way.
    pub fn read(status: StatusCode, headers: &HeaderMap, wall: impl Fn() -> SystemTime) -> Option<Self> {
        if !policy::feedback::has_limits(headers) {
            return None;
        }
        let throttled = policy::feedback::is_throttled(status, headers);
        let asked = throttled.then(|| policy::feedback::pause(headers, &wall)).flatten();
        let pause = asked.filter(|asked| !asked.is_zero());
        let remaining = policy::rate_limit::remaining(headers, wall);
        (pause.is_some() || !remaining.as_slice().is_empty()).then_some(Self { pause, remaining })
    }

    /// A pause of this length for all who share the limiter.
    pub fn pause(length: Duration) -> Self {
        Self { pause: Some(length), remaining: RemainingList::default() }
    }

    /// For how long the server wants no further request, counted from its answer.
    pub fn asked_pause(&self) -> Option<Duration> {
        self.pause
    }

    /// What it has left, by quota.
    pub fn remaining(&self) -> impl Iterator<Item = Remaining> + '_ {
        self.remaining.as_slice().iter().copied()
    }
}
