//! The wakers of the callers in the queue, and the timers of the drivers.

use std::task::Waker;

use tokio::runtime::{Handle, Id};

use crate::limit::core::Ticket;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) wakers: Wakers,
    pub(super) timers: Vec<Timer>,
}

impl Waiting {
    /// Returns whether the current runtime has a driver. Outside a runtime, any driver suffices.
    pub(super) fn has_driver(&self) -> bool {
        match Handle::try_current() {
            Ok(handle) => self.timers.iter().any(|timer| timer.runtime == handle.id()),
            Err(_) => !self.timers.is_empty(),
        }
    }
}

/// The timer of a driver.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) runtime: Id,
    /// `None` until the driver is first polled, and after it was woken.
    waker: Option<Waker>,
    /// The time for which the timer is set.
    at: u64,
}

impl Timer {
    pub(super) fn new(runtime: Id) -> Self {
        Self { runtime, waker: None, at: 0 }
    }

    pub(super) fn set(&mut self, at: u64, waker: &Waker) {
        (self.waker, self.at) = (Some(waker.clone()), at);
    }

    /// Returns the driver's waker if its timer is later than `wake`.
    pub(super) fn hurry(&mut self, wake: u64) -> Option<Waker> {
        if wake < self.at { self.waker.take() } else { None }
    }
}

/// The wakers by the slots of the tickets.
#[derive(Debug, Default)]
pub(super) struct Wakers(Vec<Option<Waker>>);

impl Wakers {
    /// Stores the waker of a queued request. Returns the waker that it replaces, so that it is dropped without the
    /// lock.
    pub(super) fn keep(&mut self, ticket: Ticket, waker: &Waker) -> Option<Waker> {
        let slot = ticket.slot();
        if self.0.len() <= slot {
            self.0.resize(slot + 1, None);
        }
        let known = self.0.get_mut(slot)?;
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        known.replace(waker.clone())
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waker> {
        self.0.get_mut(ticket.slot())?.take()
    }

    /// Frees the memory of a queue that has become empty.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

/// The room for further wakers, so that a group of waiters takes one allocation.
const ROOM: usize = 32;

/// Wakers that are woken after the lock is released. A single one takes no allocation.
#[derive(Default)]
pub(super) struct Wakes {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakes {
    pub(super) fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        for waker in wakers {
            match self.first {
                None => self.first = Some(waker),
                Some(_) => {
                    if self.more.is_empty() {
                        self.more.reserve(ROOM);
                    }
                    self.more.push(waker);
                }
            }
        }
    }

    #[inline]
    pub(super) fn wake(self) {
        self.first.into_iter().chain(self.more).for_each(Waker::wake);
    }
}
