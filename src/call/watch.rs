//! The progress of the transport with an attempt, and of the request's body.

use super::{CallContext, Phase};
use crate::clock::{self, Instant};

impl CallContext {
    /// Begins to watch how far the transport gets with an attempt.
    pub(crate) fn begin_watch(&self) {
        self.0.shared.progress.begin();
    }

    pub(crate) fn end_watch(&self) {
        self.0.shared.progress.end();
    }

    /// Records that the attempt timeout has set a timer, which ends at the deadline at the latest.
    pub(crate) fn set_timed(&self) {
        self.0.shared.progress.set_timed();
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.0.shared.progress.is_timed()
    }

    /// Records that the attempt timeout gives the attempt up.
    pub(crate) fn expire(&self) {
        self.0.shared.progress.expire();
    }

    #[cfg(feature = "client")]
    pub(crate) fn is_expired(&self) -> bool {
        self.0.shared.progress.is_expired()
    }

    /// Returns how far the transport has got with the running attempt.
    pub(crate) fn phase(&self) -> Phase {
        self.0.shared.progress.phase()
    }

    /// Records that an attempt took a frame of the request's body, or reached its end.
    pub(crate) fn body_advanced(&self) {
        self.0.shared.progress.body_advanced(self.0.shared.started.elapsed());
    }

    /// Returns the last progress of the request's body, or the start of the call if no attempt has read the body.
    pub(crate) fn body_progress(&self) -> Instant {
        clock::after(self.0.shared.started, self.0.shared.progress.body())
    }

    /// Records how far the transport has got with the running attempt.
    #[cfg(feature = "client")]
    pub(crate) fn enter(&self, phase: Phase) {
        self.0.shared.progress.enter(phase);
    }

    /// Records that the request was handed to a connection.
    #[cfg(feature = "client")]
    pub(crate) fn sent(&self, now: Instant) {
        self.enter(Phase::Sent(now.saturating_duration_since(self.0.shared.started)));
    }

    /// Records that the connection has returned the request without beginning to send it.
    #[cfg(feature = "client")]
    pub(crate) fn returned(&self) {
        self.0.shared.progress.returned();
    }
}
