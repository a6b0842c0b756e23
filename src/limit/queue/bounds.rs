//! Refuses the waiters that cannot be served in time.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{
    fast_path::FastPath,
    wait_list::WaitList,
    waiter::{State, Waiter},
    waiters::Wakes,
};
use crate::{
    error::{Reason, Refusal},
    limit::algorithm::Algorithm,
};

/// The queue checks the waiters' bounds again at the latest after this many permits of other requests ahead of them.
const MOST_SPARE: u64 = 1_024;

impl<A: Algorithm> WaitList<A> {
    /// Refuses the waiters that a new server limit delays beyond their bounds.
    pub(super) fn apply_server(&mut self, fast: &FastPath, wakes: &mut Wakes) {
        let (now, wanted) = (fast.clock.now(), self.waiters.wanted());
        // The last waiter waits the longest, so a limit that does not delay the last waiter delays no waiter.
        if self.forecast(now, wanted) > self.algorithm.forecast(now, wanted, self.costliest) {
            self.refuse_late(fast, wakes);
        }
    }

    /// Refuses the waiters whose permits cannot become available in time, or at all.
    pub(super) fn refuse_late(&mut self, fast: &FastPath, wakes: &mut Wakes) {
        let (now, largest, before) = (fast.clock.now(), self.algorithm.largest(), self.head());
        let grace = self.algorithm.grace();
        let mut wanted = self.waiters.wanted;
        for rank in 0..wanted.len() {
            let (mut lost, mut ahead, mut spare) = (Vec::new(), 0, MOST_SPARE);
            for entry in self.waiters.classes[rank].entries.values() {
                let (cost, latest) = (entry.waiter.cost, entry.waiter.latest);
                let total = self.waiters.shares.total(rank, ahead + u64::from(cost.get()), &wanted);
                let due = self.forecast(now, total);
                let refusal = if cost.get() > largest {
                    Some(Refusal::new(Reason::TooCostly { largest }, None))
                } else {
                    let missed = latest.missed_by(due, now, grace);
                    let missed = missed.map(|reason| Refusal::new(reason, Duration::from_nanos(due - now)));
                    self.algorithm.unavailable(cost, now).or(missed)
                };
                match refusal {
                    Some(refusal) => lost.push((Arc::clone(&entry.waiter), refusal)),
                    None => {
                        ahead += u64::from(cost.get());
                        spare = self.spare(now, total, latest.last(grace), spare);
                    }
                }
            }
            wanted[rank] = ahead;
            self.waiters.classes[rank].spare = (ahead > 0).then_some(spare);
            for (waiter, refusal) in lost {
                self.refusals.insert(waiter.id, fast.refuse(refusal));
                if let Some(entry) = self.waiters.remove(&waiter) {
                    entry.waiter.set(State::Refused);
                    self.presence.leave(&self.waiters, &entry.waiter, wakes);
                    wakes.wake.push(entry.waker);
                }
            }
        }
        if self.head() != before {
            self.wake_head(now, wakes);
        }
    }

    /// Returns how many permits other requests may take, at most `most`, so that a waiter still gets its own by
    /// `last`. Its own permits are the last of the next `total`.
    pub(super) fn spare(&self, now: u64, total: u64, last: u64, most: u64) -> u64 {
        let is_in_time = |spare: u64| self.forecast(now, total.saturating_add(spare)) <= last;
        if last == u64::MAX || is_in_time(most) {
            return most;
        }
        let (mut least, mut beyond) = (0, most);
        while least + 1 < beyond {
            let middle = least.midpoint(beyond);
            if is_in_time(middle) {
                least = middle;
            } else {
                beyond = middle;
            }
        }
        least
    }

    /// Counts a queued request against the waiters behind it.
    pub(super) fn delay_others(&mut self, fast: &FastPath, waiter: &Waiter, wakes: &mut Wakes) {
        let is_last = self.waiters.is_last(waiter);
        self.overtake(fast, waiter.rank + usize::from(is_last), waiter.cost, wakes);
    }

    /// Counts a request against the waiters of the ranks from `rank` on. Refuses the waiters that can no longer be served
    /// in time.
    pub(super) fn overtake(&mut self, fast: &FastPath, rank: usize, cost: NonZeroU32, wakes: &mut Wakes) {
        let cost = u64::from(cost.get());
        let mut is_too_late = false;
        for class in &mut self.waiters.classes[rank..] {
            if !class.entries.is_empty() {
                class.spare = class.spare.and_then(|spare| spare.checked_sub(cost));
                is_too_late |= class.spare.is_none();
            }
        }
        if is_too_late {
            self.refuse_late(fast, wakes);
        }
    }
}
