//! Skips absent waiters: their callers keep the future and do not poll it, or their runtime is blocked.
//!
//! The head is expected to be polled when its timer fires or when it is woken. If it is not polled within [`GRACE`], a
//! waiter that checks the queue wakes the first waiters of each priority. The next check, another [`GRACE`] later, sets
//! aside those that were still not polled. The number of waiters doubles with each check. A waiter that is polled again
//! returns to its position.

use std::thread::{self, ThreadId};

use super::{
    sync::Ordering,
    waiter::Waiter,
    waiters::{Waiters, Wakes},
};

/// The time after which a waiter that was woken is considered absent: 50 ms in nanoseconds.
const GRACE: u64 = 50_000_000;

/// The time between two checks by one waiter while all heads are polled: 450 ms in nanoseconds.
const CHECK: u64 = 450_000_000;

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
    /// The threads on which waiters joined. A blocked runtime blocks all waiters that joined on its threads.
    threads: [Option<Thread>; THREADS],
    /// The index of the thread that is replaced next.
    oldest: usize,
}

/// The waiters that joined on one thread.
#[derive(Debug, Clone, Copy)]
struct Thread {
    id: ThreadId,
    /// The id of the last waiter that checks the queue, unless it has left.
    checker: Option<u64>,
    /// The number of waiters after it.
    others: u32,
    /// The rank and the id of the last waiter.
    last: (usize, u64),
}

impl Presence {
    /// Returns the index of the current thread.
    pub(super) fn thread(&mut self) -> usize {
        let id = thread::current().id();
        let known = self.threads.iter().position(|thread| thread.is_some_and(|thread| thread.id == id));
        known.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % THREADS;
            self.threads[self.oldest] = Some(Thread { id, checker: None, others: 0, last: (0, 0) });
            self.oldest
        })
    }

    /// Decides whether a new waiter checks the queue: in a short queue, or if no other waiter of its thread does, or one
    /// that is far ahead. `waiters` does not contain the new waiter.
    pub(super) fn join(&mut self, waiters: &Waiters, waiter: &Waiter) {
        let Some(thread) = &mut self.threads[waiter.thread] else { return };
        thread.last = (waiter.rank, waiter.id);
        thread.others += 1;
        if waiters.present() < SHORT || thread.others >= PART || thread.checker.is_none() {
            (thread.checker, thread.others) = (Some(waiter.id), 0);
            waiter.checks.store(true, Ordering::Relaxed);
        }
    }

    /// Makes the last waiter of a thread check the queue, if the last one that did so has left the queue.
    pub(super) fn leave(&mut self, waiters: &Waiters, waiter: &Waiter, wakes: &mut Wakes) {
        let Some(thread) = &mut self.threads[waiter.thread] else { return };
        if thread.checker != Some(waiter.id) {
            return;
        }
        thread.checker = None;
        let (rank, id) = thread.last;
        if let Some(entry) = waiters.classes[rank].entries.get(&id) {
            (thread.checker, thread.others) = (Some(id), 0);
            entry.waiter.checks.store(true, Ordering::Relaxed);
            wakes.wake.push(entry.waker.clone());
        }
    }

    /// Returns whether an absent head was found recently.
    pub(super) fn is_suspicious(&self, now: u64) -> bool {
        self.woken > 0 && now.saturating_sub(self.checked_at) <= SUSPICION
    }

    /// Returns the time at which a waiter that is not the head checks the queue again. Returns `None` if the waiter
    /// need not check and no head was absent in the last second.
    pub(super) fn check_at(&self, waiter: &Waiter, now: u64) -> Option<u64> {
        let next = self.expected_at.saturating_add(GRACE + 1);
        let is_calm = !self.is_suspicious(now);
        if is_calm && !waiter.checks.load(Ordering::Relaxed) {
            return None;
        }
        let at = next.clamp(now + if is_calm { CHECK } else { 1 }, now + CHECK);
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
            for id in absent {
                if let Some(waiter) = waiters.set_absent(rank, id) {
                    self.leave(waiters, &waiter, wakes);
                }
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
