//! Applies the limit of requests in flight.

use std::num::NonZeroU32;

use super::{Core, bounds::RECHECK, latest::Latest, queue::Head};
use crate::policy::adaptive::Learner;

impl Core {
    /// Counts a request in flight, even beyond the limit.
    pub fn enter_flight(&mut self) {
        self.in_flight.iter_mut().for_each(|in_flight| in_flight.enter());
    }

    /// Ends a request in flight. A cancelled one still counts for a while.
    pub fn end_in_flight(&mut self, is_cancelled: bool, now: u64) {
        self.leave_flight(is_cancelled, now);
        self.advance(now);
    }

    /// As [`end_in_flight`](Self::end_in_flight), without serving a waiter.
    pub(super) fn leave_flight(&mut self, is_cancelled: bool, now: u64) {
        if self.in_flight.as_mut().is_some_and(|in_flight| in_flight.leave(is_cancelled, now)) {
            // The next grant is not backdated to a time at which the request was in flight.
            self.lateness.hold(now);
        }
    }

    /// Ends the cancelled requests that have counted long enough.
    pub fn end_held(&mut self, now: u64) {
        if self.in_flight.as_mut().is_some_and(|in_flight| in_flight.end_held(now)) {
            self.lateness.hold(now);
        }
    }

    /// Returns whether the limit of requests in flight is reached. Forecasts ignore it.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.full_limit().is_some()
    }

    /// Returns whether a request must wait until another one ends. One that is already in flight need not.
    #[inline]
    pub(super) fn is_full_for(&self, is_in_flight: bool) -> bool {
        !is_in_flight && self.is_full()
    }

    /// Returns the waiter that is served next.
    pub(super) fn head(&self) -> Option<Head> {
        let head = self.queue.head(self.supply.largest())?;
        let serves_renewed_first = self.queue.renewed > 0 && self.serves_renewed_first();
        let renewed = if serves_renewed_first { self.queue.head_renewed(self.is_full()) } else { None };
        renewed.or(Some(head))
    }

    /// Returns whether renewed requests go first: while no further request may be in flight, or only a probe may leave,
    /// here or in the other limiter of a [`Joint`](crate::limit::Joint). The other waiters wait for the ends of these
    /// requests, and may wait for their connections. A probe that waits for a connection would count as lost.
    pub(super) fn serves_renewed_first(&self) -> bool {
        self.is_full()
            || self.queue.has_joint
            || self.server.pause.is_long()
            || self.learners().any(Learner::is_probing)
    }

    /// Returns the limit if it is reached.
    pub(super) fn full_limit(&self) -> Option<NonZeroU32> {
        self.in_flight.as_ref().filter(|in_flight| in_flight.is_full()).map(|in_flight| in_flight.max)
    }

    /// Schedules the refusal of a waiter at its bound, because no forecast refuses it earlier.
    pub(super) fn watch_bound(&mut self, latest: Latest) {
        if self.watches_bounds() && latest.is_bounded() {
            self.recheck_by(latest.last(self.grace()));
        }
    }

    /// Returns whether waiters are refused at their bounds even if nothing changes, because a forecast may be unknown or
    /// too early.
    fn watches_bounds(&self) -> bool {
        self.in_flight.is_some()
            || self.units.is_some()
            || self.queue.has_joint
            || self.supply.learner().is_some()
            || self.queue.costliest > 1
    }

    /// Checks the bounds of all waiters at this time or earlier.
    pub(super) fn recheck_by(&mut self, bound: u64) {
        self.queue.recheck_at = Some(self.queue.recheck_at.map_or(bound, |known| known.min(bound)));
    }

    /// Schedules the refusal of the next waiter, after those whose bounds have passed were refused.
    pub(super) fn watch_bounds(&mut self, now: u64) {
        if self.watches_bounds() && self.queue.bounded > 0 {
            let grace = self.grace();
            let next = self.queue.iter().map(|waiter| waiter.latest.last(grace)).min();
            self.recheck_by(next.unwrap_or(u64::MAX).max(now.saturating_add(RECHECK)));
        }
    }

    /// Returns the number of waiters that are already in flight.
    #[allow(dead_code, reason = "only a store of permits, such as Redis, reads it")]
    pub fn renewing(&self) -> usize {
        self.queue.in_flight
    }

    /// Returns the number of requests in flight, if it is limited.
    pub fn requests_in_flight(&self, now: u64) -> Option<u32> {
        self.in_flight.as_ref().map(|in_flight| in_flight.requests(now))
    }
}
