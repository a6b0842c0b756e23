//! The phase of an attempt in the transport, and the progress of the request's body.
//!
//! The attempt timeout watches one attempt at a time. If several attempts of the call run at once, as with hedging, the
//! phase of all later attempts is unknown.

use std::{sync::atomic::Ordering, time::Duration};

use super::{CallContext, shared::Shared};
use crate::{
    clock::{self, Instant},
    policy::nanos,
};

/// The phase of an attempt below the attempt timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client below reports no phases, so the request may have been sent.
    Unknown,
    /// The request waits for a new connection.
    Connecting,
    /// The request waits for a connection or a stream that other requests use.
    Waiting,
    /// The request was handed to a connection this long after the start of the call. This phase is final, unless the
    /// connection returns the request unsent.
    Sent(Duration),
}

// The values of `watch`.
const IDLE: u8 = 0;
const RUNNING: u8 = 1;
/// The attempt timeout has set a timer.
const TIMED: u8 = 2;
/// The attempt timeout has expired.
const EXPIRED: u8 = 3;
const SEVERAL: u8 = 4;

// The values of `phase`. Any other value is the time of `Phase::Sent` in nanoseconds, plus `SENT`.
const UNKNOWN: u64 = 0;
const CONNECTING: u64 = 1;
const WAITING: u64 = 2;
const SENT: u64 = 3;

impl Shared {
    /// Forgets the phase of the attempt before, because the next attempt may end before it is watched.
    pub(super) fn reset_phase(&self) {
        if self.watch.load(Ordering::Acquire) == IDLE {
            self.phase.store(UNKNOWN, Ordering::Release);
        }
    }

    /// Changes the state of the watched attempt. Does nothing if no attempt or several attempts are watched.
    fn change_watch(&self, next: u8) {
        let change = |watch| (watch != SEVERAL && watch != IDLE).then_some(next);
        let _ = self.watch.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
}

impl CallContext {
    /// Begins to watch the phase of an attempt.
    pub(crate) fn begin_watch(&self) {
        let Shared { watch, phase, .. } = &*self.0.shared;
        match watch.compare_exchange(IDLE, RUNNING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => phase.store(UNKNOWN, Ordering::Release),
            Err(_) => watch.store(SEVERAL, Ordering::Release),
        }
    }

    /// Ends the watch. The phase can still be read.
    pub(crate) fn end_watch(&self) {
        self.0.shared.change_watch(IDLE);
    }

    /// Records that the attempt timeout has set a timer, which ends at the deadline at the latest.
    pub(crate) fn set_timed(&self) {
        self.0.shared.change_watch(TIMED);
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.0.shared.watch.load(Ordering::Acquire) == TIMED
    }

    /// Records that a timeout ended the attempt. The transport can then retire the connection of the attempt.
    pub(crate) fn expire(&self) {
        self.0.shared.change_watch(EXPIRED);
    }

    /// Calls `end`, which drops a response body that has stalled for `limit`. The transport can then retire the
    /// connection of the body. [`body_progress`](Self::body_progress) returns the start of the stall.
    pub(crate) fn end_stalled(&self, limit: Duration, end: impl FnOnce()) {
        let Shared { watch, body_progress, .. } = &*self.0.shared;
        if watch.compare_exchange(IDLE, EXPIRED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another attempt is running, or several have run at once.
            return end();
        }
        body_progress.store(nanos(self.started().elapsed().saturating_sub(limit)), Ordering::Relaxed);
        end();
        self.end_watch();
    }

    #[cfg(any(feature = "client", test))]
    pub(crate) fn is_expired(&self) -> bool {
        self.0.shared.watch.load(Ordering::Acquire) == EXPIRED
    }

    /// Returns whether the latest attempt waits for a connection or a stream, so that its request was not sent.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self.phase(), Phase::Connecting | Phase::Waiting)
    }

    /// Returns the phase of the latest attempt.
    pub(crate) fn phase(&self) -> Phase {
        let Shared { watch, phase, .. } = &*self.0.shared;
        // Reads the phase first: if another attempt has changed it, `watch` is already `SEVERAL`.
        let phase = phase.load(Ordering::Acquire);
        match phase {
            _ if watch.load(Ordering::Acquire) == SEVERAL => Phase::Unknown,
            UNKNOWN => Phase::Unknown,
            CONNECTING => Phase::Connecting,
            WAITING => Phase::Waiting,
            sent => Phase::Sent(Duration::from_nanos(sent - SENT)),
        }
    }

    /// Records the phase of the running attempt.
    #[cfg(any(feature = "client", test))]
    pub(crate) fn enter(&self, phase: Phase) {
        let next = match phase {
            Phase::Unknown => UNKNOWN,
            Phase::Connecting => CONNECTING,
            Phase::Waiting => WAITING,
            Phase::Sent(since_start) => nanos(since_start).saturating_add(SENT),
        };
        let change = |phase| (phase < SENT).then_some(next);
        let _ = self.0.shared.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// Records that the request was handed to a connection.
    #[cfg(feature = "client")]
    pub(crate) fn sent(&self, now: Instant) {
        self.enter(Phase::Sent(now.saturating_duration_since(self.started())));
    }

    /// Records that the connection has returned the request without beginning to send it.
    #[cfg(feature = "client")]
    pub(crate) fn returned(&self) {
        self.0.shared.phase.store(WAITING, Ordering::Release);
    }

    /// Records that an attempt took a frame of the request's body, or reached its end.
    pub(crate) fn body_advanced(&self) {
        self.0.shared.body_progress.store(nanos(self.started().elapsed()), Ordering::Relaxed);
    }

    /// Returns the last progress of the request's body, or the start of the call if no attempt has read the body.
    pub(crate) fn body_progress(&self) -> Instant {
        let since_start = self.0.shared.body_progress.load(Ordering::Relaxed);
        clock::after(self.started(), Duration::from_nanos(since_start))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Outcome, *};

    fn call() -> CallContext {
        CallContext::of(&mut http::Extensions::new())
    }

    #[test]
    fn sent_is_the_last_phase_of_an_attempt() {
        let (call, sent) = (call(), Phase::Sent(Duration::from_nanos(7)));
        call.begin_watch();
        for phase in [Phase::Connecting, Phase::Waiting, sent] {
            call.enter(phase);
            assert_eq!(call.phase(), phase);
        }
        call.enter(Phase::Connecting);
        assert_eq!(call.phase(), sent);
    }

    #[test]
    fn attempt_that_is_not_sent_reports_no_time_of_sending() {
        let (call, sent) = (call(), Duration::from_secs(1));
        call.start_attempt(call.started()).unwrap();
        call.begin_watch();
        call.enter(Phase::Sent(sent));
        call.end_watch();
        call.end_attempt(Outcome::Response(http::StatusCode::SERVICE_UNAVAILABLE), None, None, None);
        call.start_attempt(call.started()).unwrap();
        assert_eq!(call.phase(), Phase::Unknown);
        call.end_attempt(Outcome::Refused, None, None, None);
        let reported = call.report().attempts().iter().map(|attempt| attempt.sent).collect::<Vec<_>>();
        assert_eq!(reported, [Some(sent), None]);
    }

    #[test]
    fn phase_is_unknown_after_two_attempts_at_once() {
        let call = call();
        call.begin_watch();
        call.begin_watch();
        call.enter(Phase::Connecting);
        call.end_watch();
        call.end_watch();
        assert_eq!(call.phase(), Phase::Unknown);
        call.begin_watch();
        call.enter(Phase::Waiting);
        call.expire();
        assert_eq!((call.phase(), call.is_expired()), (Phase::Unknown, false));
    }
}
