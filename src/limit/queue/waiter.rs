//! The state of a queued request, shared by the queue and the request's future. The future reads its grant without the
//! lock.

use std::num::NonZeroU32;

use super::{
    clock::Clock,
    sync::{AtomicU64, Ordering},
};
use crate::{error::Reason, limit::permit_request::PermitRequest, policy::nanos};

const WAITING: u64 = 0;
const REFUSED: u64 = u64::MAX;
const COLLECTED: u64 = u64::MAX - 1;
const EXPIRED: u64 = u64::MAX - 2;

/// The state of a waiter. The queue writes the state under its lock, except in [`collect`](Self::collect). The future
/// reads the state without the lock.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The id, which increases with each arrival.
    pub(super) id: u64,
    pub(super) cost: NonZeroU32,
    /// The rank of its priority.
    pub(super) rank: usize,
    state: AtomicU64,
    pub(super) latest: Latest,
}

/// The latest time at which a grant is useful, for each bound of a request. `u64::MAX` without that bound.
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
    /// The waiter has received its granted permits.
    Collected,
    /// The waiter was not polled in time after the grant, and needs new permits.
    Expired,
    Refused,
}

impl State {
    /// Returns the time that a waiter stores for a grant at `at`. Moves a time that equals the value of another state
    /// by a few nanoseconds.
    pub(super) fn time(at: u64) -> u64 {
        at.clamp(WAITING + 1, EXPIRED - 1)
    }
}

impl Waiter {
    pub(super) fn new(id: u64, (rank, cost): (usize, NonZeroU32), latest: Latest) -> Self {
        Self { id, cost, rank, state: AtomicU64::new(WAITING), latest }
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            WAITING => State::Waiting,
            REFUSED => State::Refused,
            COLLECTED => State::Collected,
            EXPIRED => State::Expired,
            at => State::Granted(at),
        }
    }

    pub(super) fn set(&self, state: State) {
        let state = match state {
            State::Waiting => WAITING,
            State::Granted(at) => State::time(at),
            State::Collected => COLLECTED,
            State::Expired => EXPIRED,
            State::Refused => REFUSED,
        };
        self.state.store(state, Ordering::Release);
    }

    /// Marks permits granted at `at` as collected. Returns `false` if they have expired.
    pub(super) fn collect(&self, at: u64) -> bool {
        self.replace(at, COLLECTED)
    }

    /// Marks permits granted at `at` as expired. Returns `false` if the waiter has collected them.
    pub(super) fn expire(&self, at: u64) -> bool {
        self.replace(at, EXPIRED)
    }

    fn replace(&self, at: u64, state: u64) -> bool {
        self.state.compare_exchange(at, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
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
            let waiter = Waiter::new(1, (0, NonZeroU32::MIN), Latest { max_wait: 0, deadline: 0 });
            assert_eq!(waiter.state(), State::Waiting);
            waiter.set(State::Granted(at));
            assert!(matches!(waiter.state(), State::Granted(since) if since.abs_diff(at) <= 3), "{at}");
            for state in [State::Refused, State::Expired, State::Collected] {
                waiter.set(state);
                assert_eq!(waiter.state(), state);
            }
        }
    }
}
