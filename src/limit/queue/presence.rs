//! Skips waiters that nobody polls: futures that were kept and forgotten, or whose runtime is blocked.
//!
//! The head is expected to be polled when its timer fires or when it is woken. If it is not polled for [`GRACE`], a waiter
//! that checks the queue wakes the first waiters of each priority, and sets those aside that are still not polled after
//! another [`GRACE`]. Their number doubles each time. A waiter that is polled again returns to its position.

use super::waiters::{Waiters, Wakes};

/// The time after which a waiter that was woken is considered absent: 50 ms in nanoseconds.
const GRACE: u64 = 50_000_000;

/// The shortest and the longest time between two checks of a waiter while all heads are polled: 250 ms and 1 s in
/// nanoseconds.
const CHECK: (u64, u64) = (250_000_000, 1_000_000_000);

/// All waiters of a queue of at most this length check it, and a part of the waiters of a longer one, because a timer
/// costs processor time.
const SHORT: usize = 64;
const PART: u64 = 32;

/// The time in which a timer fires: two ticks, 2 ms in nanoseconds.
const TICKS: u64 = 2_000_000;

/// The largest number of waiters that are woken at once.
const MOST_WOKEN: usize = 1_024;

/// After this time without an absent head, a single waiter is woken again at first: 10 s in nanoseconds.
const CALM: u64 = 10_000_000_000;

/// Returns whether a new waiter checks a queue of this length.
pub(super) fn checks(id: u64, length: usize) -> bool {
    length < SHORT || id % PART == 0
}

#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The time at which the head is polled, unless it is absent.
    pub(super) expected_at: u64,
    /// The number of waiters of each priority that were woken at the last check that found an absent head.
    woken: usize,
    /// The time of that check.
    checked_at: u64,
}

impl Presence {
    /// Returns when a waiter that is not the head checks the queue again.
    pub(super) fn check_at(&self, now: u64) -> u64 {
        let next = self.expected_at.saturating_add(GRACE + 1);
        let (shortest, longest) = CHECK;
        let is_calm = now.saturating_sub(self.checked_at) > longest || self.woken == 0;
        let at = next.clamp(now + if is_calm { shortest } else { 1 }, now + longest);
        // Does not check when the head grants permits. A waiter that is already awake then could overtake others.
        if at.abs_diff(self.expected_at) <= TICKS { next } else { at }
    }

    /// Sets waiters aside that are absent, if the head is one of them.
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
            absent.into_iter().for_each(|id| waiters.set_absent(rank, id));
        }
        let woken = (self.woken * 2).clamp(1, MOST_WOKEN);
        for class in &mut waiters.classes {
            for entry in class.entries.values_mut().take(woken).filter(|entry| entry.woken_at.is_none()) {
                entry.woken_at = Some(now);
                wakes.wake.push(entry.waker.clone());
            }
        }
        *self = Self { expected_at: now, woken, checked_at: now };
    }
}
