//! The progress of an attempt in the transport: its phase, the request's body, and the renewal of its permit.
//!
//! The attempt timeout watches one attempt at a time. If several attempts of the call run at once, as with hedging, the
//! phase of all later attempts is unknown.

use std::{
    mem,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use http::Request;

use super::{
    CallContext, RecordedHead,
    state::{Renewal, Shared},
};
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

// The values of `phase`. Before the request is sent, the lowest two bits are one of these states, and the bits above
// them the number of the watched attempt.
const STATE: u64 = 3;
const UNKNOWN: u64 = 0;
const CONNECTING: u64 = 1;
const WAITING: u64 = 2;
/// It was stated that the request was not sent, so the transport must not send it.
const ABANDONED: u64 = 3;
/// Set once the request was sent. The lower bits are then the time of `Phase::Sent` in nanoseconds.
const SENT: u64 = 1 << 63;
/// Set once two requests of the attempt were sent, as by a layer that follows redirects.
const SENT_AGAIN: u64 = 1 << 62;

fn numbered(attempt: u32, state: u64) -> u64 {
    u64::from(attempt) << 2 | state
}

/// Returns the state of a request that was not sent, and `UNKNOWN` for one that was.
fn unsent_state(phase: u64) -> u64 {
    if phase & SENT == 0 { phase & STATE } else { UNKNOWN }
}

impl Shared {
    /// Forgets the phase of the attempt before, because the next attempt may end before it is watched.
    pub(super) fn reset_phase(&self) {
        if self.watch.load(Ordering::Acquire) == IDLE {
            let attempt = self.watched.load(Ordering::Acquire);
            self.phase.store(numbered(attempt, UNKNOWN), Ordering::Release);
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
        let Shared { watch, watched, phase, .. } = &*self.0.shared;
        let first = watch.compare_exchange(IDLE, RUNNING, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            watch.store(SEVERAL, Ordering::Release);
        }
        let attempt = watched.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        if first.is_ok() {
            phase.store(numbered(attempt, UNKNOWN), Ordering::Release);
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

    /// Returns whether the latest attempt waits for a connection or a stream.
    fn is_waiting(&self) -> bool {
        matches!(self.phase(), Phase::Connecting | Phase::Waiting)
    }

    /// Returns whether the request of the latest attempt was not sent. Another task may send it at any time: see
    /// [`abandon`](Self::abandon).
    pub(crate) fn is_unsent(&self) -> bool {
        let Shared { watch, phase, .. } = &*self.0.shared;
        let phase = phase.load(Ordering::Acquire);
        unsent_state(phase) != UNKNOWN && watch.load(Ordering::Acquire) != SEVERAL
    }

    /// If the latest attempt waits for a connection or a stream, forbids the transport to send its request, and returns
    /// `true`. Whoever states that the request was not sent must call this, because the transport may run in a task of
    /// its own and outlive the attempt.
    pub(crate) fn abandon(&self) -> bool {
        let Shared { watch, watched, phase, .. } = &*self.0.shared;
        let abandon = |phase| {
            let is_unsent = unsent_state(phase) != UNKNOWN && watch.load(Ordering::Acquire) != SEVERAL;
            is_unsent.then_some(phase | ABANDONED)
        };
        match phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, abandon) {
            Ok(phase) if phase & STATE == ABANDONED => true,
            Ok(_) => {
                // Later requests of the call belong to another attempt.
                watched.fetch_add(1, Ordering::AcqRel);
                // The transport must not wait for a permit either.
                let renewal = self.0.shared.state().renewal.take();
                if let Some(Renewal::Wanted(_, transport) | Renewal::Checking(transport)) =
                    renewal.map(|renewal| *renewal)
                {
                    transport.wake();
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the phase of the latest attempt.
    pub(crate) fn phase(&self) -> Phase {
        let Shared { watch, phase, .. } = &*self.0.shared;
        // Reads the phase first: if another attempt has changed it, `watch` is already `SEVERAL`.
        let phase = phase.load(Ordering::Acquire);
        match phase & STATE {
            _ if watch.load(Ordering::Acquire) == SEVERAL => Phase::Unknown,
            _ if phase & SENT != 0 => Phase::Sent(Duration::from_nanos(phase & !(SENT | SENT_AGAIN))),
            CONNECTING => Phase::Connecting,
            WAITING => Phase::Waiting,
            _ => Phase::Unknown,
        }
    }
}

/// The methods of the transport. `attempt` is the number of the attempt when the transport took the request.
#[cfg(any(feature = "client", test))]
impl CallContext {
    /// Called when the transport takes a request. Returns the number of its attempt.
    pub(crate) fn take_request(&self) -> u32 {
        let Shared { watched, phase, .. } = &*self.0.shared;
        let attempt = watched.load(Ordering::Acquire);
        // A layer sends another request after one was abandoned, without an attempt of the retry layer.
        let begin = |phase| {
            let is_abandoned = unsent_state(phase) == ABANDONED && phase != numbered(attempt, ABANDONED);
            is_abandoned.then_some(numbered(attempt, UNKNOWN))
        };
        let _ = phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin);
        attempt
    }

    /// Records that the request waits: for a new connection, or for one that other requests use.
    pub(crate) fn wait(&self, is_new: bool) {
        let state = if is_new { CONNECTING } else { WAITING };
        let wait =
            |phase| (phase & SENT == 0 && phase & STATE != ABANDONED).then_some(phase & !STATE | state);
        let _ = self.0.shared.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, wait);
    }

    /// Records that the request is handed to a connection. Returns `false` if the attempt was abandoned or has been
    /// followed by another one: the request must then not be sent.
    pub(crate) fn send(&self, attempt: u32, now: Instant) -> bool {
        let Shared { watch, watched, phase, .. } = &*self.0.shared;
        let since_start = nanos(now.saturating_duration_since(self.started())) & !(SENT | SENT_AGAIN);
        let abandoned = numbered(attempt, ABANDONED);
        let send = |phase| match phase {
            _ if phase == abandoned => None,
            _ if phase & SENT != 0 => {
                (watched.load(Ordering::Acquire) == attempt).then_some(phase | SENT_AGAIN)
            }
            _ => (phase | STATE == abandoned).then_some(SENT | since_start),
        };
        match phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, send) {
            Ok(_) => true,
            Err(phase) => phase != abandoned && watch.load(Ordering::Acquire) == SEVERAL,
        }
    }

    /// Records that the connection has returned the request without beginning to send it.
    pub(crate) fn returned(&self, attempt: u32) {
        let Shared { watched, phase, .. } = &*self.0.shared;
        let returned = |phase| {
            let is_only = phase & SENT != 0 && phase & SENT_AGAIN == 0;
            (is_only && watched.load(Ordering::Acquire) == attempt).then_some(numbered(attempt, WAITING))
        };
        let _ = phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, returned);
    }
}

impl CallContext {
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

impl CallContext {
    /// Called by the rate limit layer when its inner service is pending. Returns the head of the request if the
    /// transport waits until the permit was checked. [`renewed`](Self::renewed) must then be called.
    pub(crate) fn renewal(&self, cx: &mut Context<'_>) -> Option<Box<RecordedHead>> {
        if !self.is_waiting() {
            return None;
        }
        let mut state = self.0.shared.state();
        let Some(renewal) = state.renewal.as_deref_mut() else {
            state.renewal = Some(Box::new(Renewal::Watched(cx.waker().clone())));
            return None;
        };
        let (next, head) = match mem::replace(renewal, Renewal::Renewed) {
            Renewal::Wanted(head, transport) => (Renewal::Checking(transport), Some(head)),
            Renewal::Watched(_) => (Renewal::Watched(cx.waker().clone()), None),
            // An inner rate limit layer checks its permit. An outer layer must not answer for it.
            checked @ (Renewal::Checking(_) | Renewal::Renewed) => (checked, None),
        };
        *renewal = next;
        head
    }

    /// Lets the transport send the request.
    pub(crate) fn renewed(&self) {
        let mut state = self.0.shared.state();
        let checked = state.renewal.as_deref_mut().map(|renewal| mem::replace(renewal, Renewal::Renewed));
        drop(state);
        if let Some(Renewal::Checking(transport)) = checked {
            transport.wake();
        }
    }

    /// Called by the transport before it sends a request that has waited for a connection. Waits until the rate limit
    /// layer, if there is one, has a permit that still applies.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the transport calls it"))]
    pub(crate) fn poll_renewed<B>(&self, request: &Request<B>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.shared.state();
        // Without a renewal, no rate limit layer has seen the wait.
        let Some(renewal) = state.renewal.as_deref_mut() else { return Poll::Ready(()) };
        match renewal {
            Renewal::Renewed => {
                state.renewal = None;
                return Poll::Ready(());
            }
            Renewal::Checking(transport) => {
                transport.clone_from(cx.waker());
                return Poll::Pending;
            }
            // While several attempts run at once, as with hedging, no rate limit layer checks the permit.
            _ if !self.is_waiting() => return Poll::Ready(()),
            Renewal::Wanted(_, transport) => {
                transport.clone_from(cx.waker());
                return Poll::Pending;
            }
            Renewal::Watched(_) => {}
        }
        let head = Box::new(RecordedHead::of(request));
        let watched = mem::replace(renewal, Renewal::Wanted(head, cx.waker().clone()));
        drop(state);
        if let Renewal::Watched(limiter) = watched {
            limiter.wake();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
