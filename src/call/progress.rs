//! How far the transport has got with an attempt.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

/// The transport's progress with the running attempt, in three atomics that are read without a lock.
///
/// The attempt timeout watches one attempt at a time. If several attempts of the call run at once, as with hedging, the
/// phase of all later attempts is unknown.
#[derive(Debug, Default)]
pub(super) struct Progress {
    watch: AtomicU8,
    phase: AtomicU64,
    /// When an attempt last took a frame of the request's body, in nanoseconds after the start of the call.
    body: AtomicU64,
}

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

impl Progress {
    /// Forgets the phase of the attempt before, because the next attempt may end before it is watched.
    pub(super) fn reset(&self) {
        if self.watch.load(Ordering::Acquire) == IDLE {
            self.phase.store(UNKNOWN, Ordering::Release);
        }
    }

    /// Begins to watch an attempt.
    pub(super) fn begin(&self) {
        match self.watch.compare_exchange(IDLE, RUNNING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => self.phase.store(UNKNOWN, Ordering::Release),
            Err(_) => self.watch.store(SEVERAL, Ordering::Release),
        }
    }

    /// Ends the watch. The phase can still be read.
    pub(super) fn end(&self) {
        self.change(IDLE);
    }

    pub(super) fn set_timed(&self) {
        self.change(TIMED);
    }

    pub(super) fn is_timed(&self) -> bool {
        self.watch.load(Ordering::Acquire) == TIMED
    }

    pub(super) fn expire(&self) {
        self.change(EXPIRED);
    }

    #[cfg(any(feature = "client", test))]
    pub(super) fn is_expired(&self) -> bool {
        self.watch.load(Ordering::Acquire) == EXPIRED
    }

    fn change(&self, next: u8) {
        let change = |watch| (watch != SEVERAL && watch != IDLE).then_some(next);
        let _ = self.watch.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    #[cfg(any(feature = "client", test))]
    pub(super) fn enter(&self, phase: Phase) {
        let next = match phase {
            Phase::Unknown => UNKNOWN,
            Phase::Connecting => CONNECTING,
            Phase::Waiting => WAITING,
            Phase::Sent(since_start) => crate::policy::nanos(since_start).saturating_add(SENT),
        };
        let change = |phase| (phase < SENT).then_some(next);
        let _ = self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// Records that the request waits for a connection again.
    #[cfg(feature = "client")]
    pub(super) fn returned(&self) {
        self.phase.store(WAITING, Ordering::Release);
    }

    /// Records that an attempt took a frame of the request's body, or reached its end.
    pub(super) fn body_advanced(&self, since_start: Duration) {
        self.body.store(crate::policy::nanos(since_start), Ordering::Relaxed);
    }

    /// Returns the time from the start of the call to the last progress of the request's body. Returns zero if no
    /// attempt has read the body.
    pub(super) fn body(&self) -> Duration {
        Duration::from_nanos(self.body.load(Ordering::Relaxed))
    }

    /// Returns the phase of the latest attempt.
    pub(super) fn phase(&self) -> Phase {
        // Reads the phase first: if another attempt has changed it, `watch` is already `SEVERAL`.
        let phase = self.phase.load(Ordering::Acquire);
        match phase {
            _ if self.watch.load(Ordering::Acquire) == SEVERAL => Phase::Unknown,
            UNKNOWN => Phase::Unknown,
            CONNECTING => Phase::Connecting,
            WAITING => Phase::Waiting,
            sent => Phase::Sent(Duration::from_nanos(sent - SENT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_is_the_last_phase_of_an_attempt() {
        let progress = Progress::default();
        progress.begin();
        for phase in [Phase::Connecting, Phase::Waiting, Phase::Sent(Duration::from_nanos(7))] {
            progress.enter(phase);
            assert_eq!(progress.phase(), phase);
        }
        progress.enter(Phase::Connecting);
        assert_eq!(progress.phase(), Phase::Sent(Duration::from_nanos(7)));
        progress.end();
        assert_eq!(
            progress.phase(),
            Phase::Sent(Duration::from_nanos(7)),
            "the report reads it after the end"
        );
        progress.reset();
        assert_eq!(progress.phase(), Phase::Unknown);
        progress.begin();
        assert_eq!(progress.phase(), Phase::Unknown);
    }

    #[test]
    fn phase_is_unknown_after_two_attempts_at_once() {
        let progress = Progress::default();
        progress.begin();
        progress.begin();
        progress.enter(Phase::Connecting);
        progress.end();
        progress.end();
        assert_eq!(progress.phase(), Phase::Unknown);
        progress.begin();
        progress.enter(Phase::Waiting);
        progress.expire();
        assert_eq!((progress.phase(), progress.is_expired()), (Phase::Unknown, false));
    }
}
