//! Computes the delay before a WebSocket client reconnects.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;
use tower_outbound::{Error, ExponentialBackoff, Report, call::StopReason, client::Response};

/// The time after which an open connection counts as stable. A stable connection resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Counts the connections that failed or were lost, and returns the delay before the next connection.
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

    /// Returns the delay before the next connection, after an open connection was lost.
    pub(crate) fn lost(&mut self) -> Duration {
        self.after(Duration::ZERO)
    }

    /// Returns the delay after the server rejected the handshake, or `None` if the failure is permanent.
    ///
    /// The stack has already retried the handshake. The returned delay is the delay before the next call.
    pub(crate) fn rejected(&mut self, response: &Response) -> Option<Duration> {
        let report = response.report();
        let requested = report.and_then(|report| report.attempts().last()?.requested_delay);
        let retry_after = report.and_then(Report::retry_after);
        let temporary = matches!(response.status().as_u16(), 408 | 425 | 429 | 500..600);
        temporary.then(|| self.after(requested.max(retry_after).unwrap_or_default()))
    }

    /// Returns the delay after an error, or `None` if the failure is permanent.
    pub(crate) fn failed(&mut self, error: &Error) -> Option<Duration> {
        let stop = error.report().and_then(Report::stop_reason);
        let permanent = stop == Some(StopReason::NotRetryable) && !error.is_rate_limited();
        match error.retry_after() {
            None if permanent => None,
            requested => Some(self.after(requested.unwrap_or_default())),
        }
    }

    /// Returns the backoff, or the requested delay with jitter if that delay is longer.
    fn after(&mut self, requested: Duration) -> Duration {
        if self.connected.take().is_some_and(|since| since.elapsed() >= STABLE_AFTER) {
            self.losses = 0;
        }
        let (loss, random) = (self.losses, self.random.hash_one(Instant::now()));
        self.losses = self.losses.saturating_add(1);
        let backoff = self.backoff.delay(loss, random);
        if requested > backoff {
            requested.saturating_add(self.backoff.spread(loss, random))
        } else {
            backoff
        }
    }
}
