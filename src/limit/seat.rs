//! What a place in the line shares with the future that waits at it: who is granted learns so without the lock.

use super::{
    Reason,
    sync::{AtomicU64, Ordering},
};

const WAITING: u64 = 0;
const REFUSED: u64 = u64::MAX;

/// Changed under the lock of the line alone; read without it.
#[derive(Debug)]
pub(super) struct Seat {
    state: AtomicU64,
    /// The last moment at which the permits are worth having, and what it means to miss it.
    pub(super) latest: Option<(u64, Reason)>,
}

/// How the request at a seat stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    /// Since this moment.
    Granted(u64),
    Refused,
}

impl Seat {
    pub(super) fn new(latest: Option<(u64, Reason)>) -> Self {
        Self { state: AtomicU64::new(WAITING), latest }
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
            // A nanosecond more or less is nothing to a wait.
            State::Granted(at) => at.clamp(WAITING + 1, REFUSED - 1),
            State::Refused => REFUSED,
        };
        self.state.store(state, Ordering::Release);
    }
}
