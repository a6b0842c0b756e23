//! The number of requests in flight, if it is limited.

use std::{collections::VecDeque, num::NonZeroU32};

use super::Core;

/// Waiters whose bounds pass within this time are refused together: 10 ms in nanoseconds.
const TOGETHER: u64 = 10_000_000;

/// The requests in flight.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    max: NonZeroU32,
    /// How long a cancelled request still counts, in nanoseconds.
    hold: u64,
    /// With the cancelled ones that still count.
    requests: u32,
    /// When the cancelled requests stop counting, in order.
    held: VecDeque<u64>,
}

impl InFlight {
    pub(super) fn new(max: NonZeroU32, hold: u64) -> Self {
        Self { max, hold, requests: 0, held: VecDeque::new() }
    }

    fn is_full(&self) -> bool {
        self.requests >= self.max.get()
    }

    /// Returns the number of cancelled requests that have counted long enough.
    fn over(&self, now: u64) -> usize {
        self.held.iter().take_while(|until| **until <= now).count()
    }
}

impl Core {
    /// Ends a request in flight. A cancelled one still counts for a while.
    pub fn end_in_flight(&mut self, is_cancelled: bool, now: u64) {
        self.leave_flight(is_cancelled, now);
        self.advance(now);
    }

    /// As [`end_in_flight`](Self::end_in_flight), without serving a waiter.
    pub(super) fn leave_flight(&mut self, is_cancelled: bool, now: u64) {
        let Some(in_flight) = &mut self.in_flight else { return };
        if is_cancelled && in_flight.hold > 0 {
            in_flight.held.push_back(now.saturating_add(in_flight.hold));
        } else {
            in_flight.requests = in_flight.requests.saturating_sub(1);
            self.lateness.hold(now);
        }
    }

    /// Ends the cancelled requests that have counted long enough.
    pub(super) fn end_held(&mut self, now: u64) {
        let Some(in_flight) = self.in_flight.as_mut().filter(|it| !it.held.is_empty()) else { return };
        for _ in 0..in_flight.over(now) {
            in_flight.held.pop_front();
            in_flight.requests = in_flight.requests.saturating_sub(1);
            // The next grant is not backdated to a time at which the request was in flight.
            self.lateness.hold(now);
        }
    }

    /// Counts a request that was granted its permits.
    #[inline]
    pub(super) fn enter_flight(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.requests += 1;
        }
    }

    /// Returns whether as many requests are in flight as allowed. No forecast includes when one of them ends.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_full())
    }

    /// Returns the limit if it is reached.
    pub(super) fn full_limit(&self) -> Option<NonZeroU32> {
        self.in_flight.as_ref().filter(|in_flight| in_flight.is_full()).map(|in_flight| in_flight.max)
    }

    /// Returns the number of requests in flight, if it is limited.
    pub(super) fn requests_in_flight(&self, now: u64) -> Option<u32> {
        let in_flight = self.in_flight.as_ref()?;
        Some(in_flight.requests.saturating_sub(u32::try_from(in_flight.over(now)).unwrap_or(u32::MAX)))
    }

    /// Returns when the next cancelled request stops counting.
    pub(super) fn next_held(&self) -> Option<u64> {
        self.in_flight.as_ref().and_then(|in_flight| in_flight.held.front().copied())
    }

    /// Schedules the refusal of a waiter at its bound, because no forecast refuses it earlier.
    pub(super) fn watch_bound(&mut self, bound: u64) {
        if self.in_flight.is_some() {
            self.queue.recheck_at = Some(self.queue.recheck_at.map_or(bound, |known| known.min(bound)));
        }
    }

    /// Schedules the refusal of the next waiter, after those whose bounds have passed were refused.
    pub(super) fn watch_bounds(&mut self, now: u64) {
        if self.in_flight.is_some() && self.queue.bounded > 0 {
            let grace = self.grace();
            let next = self.queue.iter().map(|waiter| waiter.latest.last(grace)).min();
            self.watch_bound(next.unwrap_or(u64::MAX).max(now.saturating_add(TOGETHER)));
        }
    }
}
