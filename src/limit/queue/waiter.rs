//! The state of a queued request, shared by the queue and the request's future. The future reads its grant without the
//! lock.

use std::num::NonZeroU32;

use super::{
    clock::Clock,
    sync::{AtomicU64, Ordering},
};
pub(super) use crate::limit::core::latest::Latest;
use crate::{limit::permit_request::PermitRequest, policy::nanos};

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

/// Returns the bounds of a request that arrives now.
pub(super) fn latest_of(request: &PermitRequest, now: u64, clock: &Clock) -> Latest {
    let max_wait = request.max_wait().map_or(u64::MAX, |longest| now.saturating_add(nanos(longest)));
    Latest { max_wait, deadline: request.deadline().map_or(u64::MAX, |deadline| clock.at(deadline)) }
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
