//! The requests in flight of a limiter that limits their number.

use std::{collections::VecDeque, num::NonZeroU32};

use super::Core;

/// The requests in flight of a limiter that limits their number.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) max: NonZeroU32,
    /// How many further requests a store admits. `None` unless a store counts the requests of all processes.
    pub(crate) admitted: Option<u32>,
    /// How long a cancelled request still counts, in nanoseconds.
    pub(super) hold: u64,
    /// The number of requests, including the cancelled ones that still count.
    requests: u32,
    /// When the cancelled requests stop counting, in order.
    held: VecDeque<u64>,
}

impl InFlight {
    pub(super) fn new(max: NonZeroU32, hold: u64) -> Self {
        Self { max, admitted: None, hold, requests: 0, held: VecDeque::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.admitted.map_or(self.requests >= self.max.get(), |further| further == 0)
    }

    /// Adds a request that was granted its permits.
    pub(super) fn enter(&mut self) {
        self.requests += 1;
        self.admitted = self.admitted.map(|further| further.saturating_sub(1));
    }

    /// Ends a request. Returns whether another one may take its place that could not before.
    pub(super) fn leave(&mut self, is_cancelled: bool, now: u64) -> bool {
        if is_cancelled && self.hold > 0 {
            let until = now.saturating_add(self.hold);
            let place = self.held.partition_point(|held| *held <= until);
            self.held.insert(place, until);
            return false;
        }
        let was_full = self.is_full();
        self.requests = self.requests.saturating_sub(1);
        was_full
    }

    /// Ends the cancelled requests that have counted long enough. Returns whether there were any.
    pub(super) fn end_held(&mut self, now: u64) -> bool {
        let over = self.over(now);
        self.held.drain(..over);
        self.requests = self.requests.saturating_sub(u32::try_from(over).unwrap_or(u32::MAX));
        over > 0
    }

    /// Returns the number of requests that count.
    pub(super) fn requests(&self, now: u64) -> u32 {
        self.requests.saturating_sub(u32::try_from(self.over(now)).unwrap_or(u32::MAX))
    }

    /// Returns when the next cancelled request stops counting.
    pub(super) fn next_held(&self) -> Option<u64> {
        self.held.front().copied()
    }

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
        if self.in_flight.as_mut().is_some_and(|in_flight| in_flight.leave(is_cancelled, now)) {
            // The next grant is not backdated to a time at which the request was in flight.
            self.lateness.hold(now);
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
