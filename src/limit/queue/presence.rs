//! Skips absent waiters: waiters whose caller keeps the future without polling it, or whose runtime is blocked.
//!
//! The head is expected to be polled when its timer fires or when it is woken. If it is not polled within [`GRACE`], the
//! next [check](super::checker) wakes the first waiter of each priority. The check after it, another [`GRACE`] later,
//! sets aside those that were still not polled, and wakes twice as many. A waiter that is polled again returns to its
//! position.

use tokio::runtime::{self, Handle};

use super::waiters::{Waiters, Wakes};

/// The time after which a waiter that was woken is considered absent: 50 ms in nanoseconds.
const GRACE: u64 = 50_000_000;

/// The time between two checks while all heads are polled: 200 ms in nanoseconds.
const CHECK: u64 = 200_000_000;

/// The largest number of waiters of each priority that are woken at once.
const MOST_WOKEN: usize = 8_192;

/// The time after an absent head was found, during which heads that were woken and not polled get no permits: 1 s in
/// nanoseconds.
const SUSPICION: u64 = 1_000_000_000;

/// After this time without an absent head, the doubling starts again with a single waiter: 10 s in nanoseconds.
const CALM: u64 = 10_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The time at which the head is polled, unless it is absent.
    pub(super) expected_at: u64,
    /// The runtimes whose tasks check the queue.
    runtimes: Vec<runtime::Id>,
    /// The number of waiters of each priority that were woken at the last check that found an absent head.
    woken: usize,
    /// The time of that check.
    checked_at: u64,
}

impl Presence {
    /// Returns whether no task of the current runtime checks the queue. Returns `false` outside a runtime.
    pub(super) fn is_unchecked(&self) -> bool {
        Handle::try_current().is_ok_and(|handle| !self.runtimes.contains(&handle.id()))
    }

    /// Records that a task of this runtime checks the queue. Returns `false` if there already is one.
    pub(super) fn add(&mut self, runtime: runtime::Id) -> bool {
        let is_new = !self.runtimes.contains(&runtime);
        if is_new {
            self.runtimes.push(runtime);
        }
        is_new
    }

    pub(super) fn remove(&mut self, runtime: runtime::Id) {
        self.runtimes.retain(|other| *other != runtime);
    }

    /// Returns whether an absent head was found recently.
    pub(super) fn is_suspicious(&self, now: u64) -> bool {
        self.woken > 0 && now.saturating_sub(self.checked_at) <= SUSPICION
    }

    /// Returns the time of the next check.
    pub(super) fn check_at(&self, now: u64) -> u64 {
        let next =
            if self.is_suspicious(now) { self.expected_at.saturating_add(GRACE + 1) } else { u64::MAX };
        next.clamp(now.saturating_add(1), now.saturating_add(CHECK))
    }

    /// Sets absent waiters aside and wakes the waiters behind them, if the head was not polled in time.
    pub(super) fn skip_absent(&mut self, waiters: &mut Waiters, now: u64, wakes: &mut Wakes) {
        let is_late = |at: u64| now.saturating_sub(at) > GRACE;
        if waiters.is_empty() || !is_late(self.expected_at) {
            return;
        }
        if now.saturating_sub(self.checked_at) > CALM {
            self.woken = 0;
        }
        for rank in 0..waiters.classes.len() {
            let first = waiters.classes[rank].entries.values().take(self.woken.max(1));
            let absent = first.filter(|entry| entry.woken_at.is_some_and(is_late));
            let absent: Vec<_> = absent.map(|entry| entry.waiter.id).collect();
            for id in absent {
                waiters.set_absent(rank, id);
            }
        }
        let woken = (self.woken * 2).clamp(1, MOST_WOKEN);
        for class in &mut waiters.classes {
            for entry in class.entries.values_mut().take(woken).filter(|entry| entry.woken_at.is_none()) {
                entry.woken_at = Some(now);
                wakes.wake.push(entry.waker.clone());
            }
        }
        (self.expected_at, self.woken, self.checked_at) = (now, woken, now);
    }
}
