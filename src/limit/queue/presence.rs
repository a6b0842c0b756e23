//! Skips absent waiters: their callers keep the future and do not poll it, or their runtime is blocked.
//!
//! The head is expected to be polled when its timer fires or when it is woken. If it is not polled within [`GRACE`], a
//! waiter that checks the queue wakes the first waiters of each priority. The next check, another [`GRACE`] later, sets
//! aside those that were still not polled. The number of waiters doubles with each check. A waiter that is polled again
//! returns to its position.

use std::thread::{self, ThreadId};

use super::waiters::{Waiters, Wakes};

/// The time after which a waiter that was woken is considered absent: 50 ms in nanoseconds.
const GRACE: u64 = 50_000_000;

/// The shortest and the longest time between two checks by one waiter while all heads are polled: 250 ms and 500 ms in
/// nanoseconds.
const CHECK: (u64, u64) = (250_000_000, 500_000_000);

/// All waiters check a queue that is shorter than this.
const SHORT: usize = 64;
/// One in this many waiters of each thread checks a longer queue, because a timer costs processor time.
const PART: u32 = 32;

/// The number of threads whose waiters are counted.
const THREADS: usize = 8;

/// The longest usual delay of a timer: two ticks, 2 ms in nanoseconds.
const TICKS: u64 = 2_000_000;

/// The largest number of waiters of each priority that are woken at once.
const MOST_WOKEN: usize = 1_024;

/// After an absent head was found, all waiters that are polled check the queue for this time: 1 s in nanoseconds.
const SUSPICION: u64 = 1_000_000_000;

/// After this time without an absent head, the doubling starts again with a single waiter: 10 s in nanoseconds.
const CALM: u64 = 10_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The time at which the head is polled, unless it is absent.
    pub(super) expected_at: u64,
    /// The number of waiters of each priority that were woken at the last check that found an absent head.
    woken: usize,
    /// The time of that check.
    checked_at: u64,
    /// The threads on which waiters joined, each with the number of waiters since the last one that checks the queue. A
    /// blocked runtime blocks all waiters that joined on its threads.
    threads: [Option<(ThreadId, u32)>; THREADS],
    /// The index of the thread that is replaced next.
    oldest: usize,
}

impl Presence {
    /// Returns whether a new waiter checks a queue of `length` waiters.
    pub(super) fn checks(&mut self, length: usize) -> bool {
        if length < SHORT {
            return true;
        }
        let thread = thread::current().id();
        if let Some((_, others)) = self.threads.iter_mut().flatten().find(|(known, _)| *known == thread) {
            *others = (*others + 1) % PART;
            return *others == 0;
        }
        self.threads[self.oldest] = Some((thread, 0));
        self.oldest = (self.oldest + 1) % THREADS;
        true
    }

    /// Returns whether an absent head was found recently.
    pub(super) fn is_suspicious(&self, now: u64) -> bool {
        self.woken > 0 && now.saturating_sub(self.checked_at) <= SUSPICION
    }

    /// Returns the time at which a waiter that is not the head checks the queue again. Returns `None` if the waiter
    /// need not check and no head was absent in the last second.
    pub(super) fn check_at(&self, checks: bool, now: u64) -> Option<u64> {
        let next = self.expected_at.saturating_add(GRACE + 1);
        let (shortest, longest) = CHECK;
        let is_calm = !self.is_suspicious(now);
        if is_calm && !checks {
            return None;
        }
        let at = next.clamp(now + if is_calm { shortest } else { 1 }, now + longest);
        // Does not check when the head grants permits, because a waiter that is already awake could overtake others.
        Some(if at.abs_diff(self.expected_at) <= TICKS { next } else { at })
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
            absent.into_iter().for_each(|id| waiters.set_absent(rank, id));
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
