//! The state of a queued request, shared by the queue and the request's future. The future reads its grant without the
//! lock.

use std::num::NonZeroU32;

use super::{
    clock::{Clock, nanos},
    sync::{AtomicU64, Ordering},
};
use crate::{error::Reason, limit::permit_request::PermitRequest};

const WAITING: u64 = 0;
const REFUSED: u64 = u64::MAX;

/// The state of a waiter. The queue writes it only under its lock, and the future reads it without the lock.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The id, which increases with each arrival.
    pub(super) id: u64,
    pub(super) cost: NonZeroU32,
    state: AtomicU64,
    pub(super) latest: Latest,
}

/// For each bound of a request, the latest time at which its permits are still useful. `u64::MAX` if there is no bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latest {
    max_wait: u64,
    deadline: u64,
}

impl Latest {
    pub(super) fn of(request: &PermitRequest, now: u64, clock: &Clock) -> Self {
        let max_wait = request.max_wait().map_or(u64::MAX, |longest| now.saturating_add(nanos(longest)));
        Self { max_wait, deadline: request.deadline().map_or(u64::MAX, |deadline| clock.at(deadline)) }
    }

    /// Returns the bound that a request misses if its permits become available at `due`. If `grace` is above zero,
    /// `due <= now` means that the forecast is unknown. In this case, `grace` extends the longest wait.
    pub(super) fn missed_by(&self, due: u64, now: u64, grace: u64) -> Option<Reason> {
        let unknown = grace > 0 && due <= now;
        let missed = |latest| if unknown { now >= latest } else { due > latest };
        let max_wait = if unknown { self.max_wait.saturating_add(grace) } else { self.max_wait };
        match (missed(max_wait), missed(self.deadline)) {
            (true, true) if self.deadline < max_wait => Some(Reason::Deadline),
            (true, _) => Some(Reason::MaxWait),
            (false, true) => Some(Reason::Deadline),
            (false, false) => None,
        }
    }

    /// Returns the latest time at which a grant is useful.
    pub(super) fn last(&self, grace: u64) -> u64 {
        self.max_wait.saturating_add(grace).min(self.deadline)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    /// The permits were granted at this time.
    Granted(u64),
    Refused,
}

impl Waiter {
    pub(super) fn new(id: u64, cost: NonZeroU32, latest: Latest) -> Self {
        Self { id, cost, state: AtomicU64::new(WAITING), latest }
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            WAITING => State::Waiting,
            REFUSED => State::Refused,
            at => State::Granted(at),
        }
    }

    pub(super) fn set(&self, state: State) {
        let state = match state {
            State::Waiting => WAITING,
            // A time that equals one of the two special values is changed by a nanosecond, which does not matter.
            State::Granted(at) => at.clamp(WAITING + 1, REFUSED - 1),
            State::Refused => REFUSED,
        };
        self.state.store(state, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_misses_the_earlier_of_its_longest_wait_and_its_deadline() {
        const END: u64 = u64::MAX;
        let (max_wait, deadline) = (Some(Reason::MaxWait), Some(Reason::Deadline));
        for (latest, due, now, grace, missed) in [
            ((END, END), END, 0, 0, None),
            ((5, END), 5, 0, 0, None),
            ((5, END), 6, 0, 0, max_wait),
            ((5, END), 5, 5, 0, None),
            ((END, 5), 5, 5, 0, None),
            ((END, 5), 6, 0, 0, deadline),
            ((7, 5), 6, 0, 0, deadline),
            ((7, 5), 8, 0, 0, deadline),
            ((5, 7), 8, 0, 0, max_wait),
            ((5, 5), 6, 0, 0, max_wait),
            // If the forecast is unknown, a request misses a bound as soon as the bound is reached.
            ((5, END), 5, 5, 3, None),
            ((5, END), 8, 8, 3, max_wait),
            ((END, 5), 5, 5, 3, deadline),
            ((5, END), 6, 5, 3, max_wait),
        ] {
            let bounds = Latest { max_wait: latest.0, deadline: latest.1 };
            assert_eq!(
                bounds.missed_by(due, now, grace),
                missed,
                "{latest:?}, due {due} at {now}, grace {grace}"
            );
        }
        assert_eq!(Latest { max_wait: 5, deadline: 9 }.last(3), 8);
        assert_eq!(Latest { max_wait: 5, deadline: 7 }.last(3), 7);
    }

    #[test]
    fn waiter_stores_any_time_as_its_grant_time() {
        for at in [0, 1, 1_000, u64::MAX - 1, u64::MAX] {
            let waiter = Waiter::new(1, NonZeroU32::MIN, Latest { max_wait: 0, deadline: 0 });
            assert_eq!(waiter.state(), State::Waiting);
            waiter.set(State::Granted(at));
            assert!(matches!(waiter.state(), State::Granted(since) if since.abs_diff(at) <= 1), "{at}");
            waiter.set(State::Refused);
            assert_eq!(waiter.state(), State::Refused);
        }
    }
}
