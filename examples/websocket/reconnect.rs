//! The waits between the connections of one WebSocket.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use http::Response;
use tokio::time::Instant;
use tower_outbound::{Body, Error, ExponentialBackoff, Report, call::StopReason};

/// A connection that held this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Counts lost connections, and returns how long to wait before the next one.
pub(crate) struct Reconnect {
    backoff: ExponentialBackoff,
    random: RandomState,
    losses: u32,
    connected: Option<Instant>,
}

impl Reconnect {
    pub(crate) fn new(backoff: ExponentialBackoff) -> Self {
        Self { backoff, random: RandomState::new(), losses: 0, connected: None }
    }

    /// Records that the connection is open.
    pub(crate) fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// Returns the wait after the connection was lost.
    pub(crate) fn lost(&mut self) -> Duration {
        self.after(Duration::ZERO)
    }

    /// Returns the wait after a response without a connection, or `None` if the next call would end in the same way.
    ///
    /// The stack has retried the call already, so only the wait for the next call is left.
    pub(crate) fn refused(&mut self, response: &Response<Body>) -> Option<Duration> {
        let report = Report::from_response(response);
        let requested = report.and_then(|report| report.attempts().last()?.requested_delay);
        let unmade = report.and_then(Report::retry_after);
        let temporary = matches!(response.status().as_u16(), 408 | 425 | 429 | 500..600);
        temporary.then(|| self.after(requested.max(unmade).unwrap_or_default()))
    }

    /// Returns the wait after an error, or `None` if the next call would fail in the same way.
    pub(crate) fn failed(&mut self, error: &Error) -> Option<Duration> {
        let stop = error.report().and_then(Report::stop_reason);
        let lasting = stop == Some(StopReason::NotRetryable) && !error.is_rate_limited();
        match error.retry_after() {
            None if lasting => None,
            wait => Some(self.after(wait.unwrap_or_default())),
        }
    }

    /// Returns the backoff, or a longer wait of at least `requested`.
    fn after(&mut self, requested: Duration) -> Duration {
        if self.connected.take().is_some_and(|since| since.elapsed() >= STABLE_AFTER) {
            self.losses = 0;
        }
        let (loss, random) = (self.losses, self.random.hash_one(Instant::now()));
        self.losses = self.losses.saturating_add(1);
        let own = self.backoff.delay(loss, random);
        if requested > own { requested.saturating_add(self.backoff.spread(loss, random)) } else { own }
    }
}
