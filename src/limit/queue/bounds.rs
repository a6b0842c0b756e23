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
    policy::Priority,
};

/// The largest `spare` of a priority whose waiters have bounds. The queue checks the bounds again after at most this many
/// permits for overtaking requests.
const MOST_SPARE: u64 = 1_024;

impl<A: Algorithm> WaitList<A> {
    /// Refuses the waiters that a new server limit delays beyond their bounds.
    pub(super) fn apply_server(&mut self, fast: &FastPath, wakes: &mut Wakes) {
        let (now, wanted) = (fast.clock().now(), self.waiters.wanted());
        // The last waiter waits the longest, so a limit that does not delay the last waiter delays no waiter.
        if self.forecast(now, wanted) > self.algorithm.forecast(now, wanted, self.costliest) {
            self.refuse_late(fast, 0, wakes);
        }
    }

    /// Refuses the waiters of the ranks from `first` on whose permits cannot become available in time, or at all.
    pub(super) fn refuse_late(&mut self, fast: &FastPath, first: usize, wakes: &mut Wakes) {
        let (now, largest, before) = (fast.clock().now(), self.algorithm.largest(), self.head());
        let grace = self.algorithm.grace();
        let mut wanted = self.waiters.wanted;
        for rank in first..wanted.len() {
            let (mut lost, mut ahead, mut spare) = (Vec::new(), 0, u64::MAX);
            for entry in self.waiters.classes[rank].entries.values() {
                let (cost, latest) = (entry.waiter.cost, entry.waiter.latest);
                let own = ahead + u64::from(cost.get());
                let due = self.due_in_class(now, (rank, own), &wanted, 0);
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
                        spare = self.spare(now, (rank, own), &wanted, (latest.last(grace), spare));
                    }
                }
            }
            wanted[rank] = ahead;
            self.waiters.classes[rank].spare = (ahead > 0).then_some(spare);
            for (waiter, refusal) in lost {
                self.refusals.insert(waiter.id, fast.refuse(refusal));
                if let Some(entry) = self.waiters.remove(&waiter) {
                    entry.waiter.set(State::Refused);
                    wakes.wake.push(entry.waker);
                }
            }
        }
        if self.head() != before {
            self.wake_head(now, wakes);
        }
    }

    /// Returns when the waiters of a rank have got `own` permits, if requests of higher priorities take `more` permits
    /// than are `wanted`.
    fn due_in_class(
        &self,
        now: u64,
        (rank, own): (usize, u64),
        wanted: &[u64; Priority::COUNT],
        more: u64,
    ) -> u64 {
        self.forecast(now, self.waiters.shares.total(rank, own, wanted, more))
    }

    /// Returns how many permits overtaking requests may take, at most `most`, so that a waiter still gets its permits by
    /// `last`. The waiter and the earlier ones of its rank need `own` permits.
    fn spare(
        &self,
        now: u64,
        own: (usize, u64),
        wanted: &[u64; Priority::COUNT],
        (last, most): (u64, u64),
    ) -> u64 {
        if last == u64::MAX {
            return most;
        }
        let most = most.min(MOST_SPARE);
        let is_in_time = |spare: u64| self.due_in_class(now, own, wanted, spare) <= last;
        if is_in_time(most) {
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

    /// Limits the `spare` of a new waiter's priority, so that overtaking requests do not delay it beyond its bounds.
    pub(super) fn limit_spare(&mut self, now: u64, waiter: &Waiter) {
        let (rank, class) = (waiter.rank, &self.waiters.classes[waiter.rank]);
        let before = if class.entries.len() == 1 { Some(u64::MAX) } else { class.spare };
        let Some(most) = before else { return };
        let wanted = &self.waiters.wanted;
        let last = waiter.latest.last(self.algorithm.grace());
        let spare = self.spare(now, (rank, wanted[rank]), wanted, (last, most));
        self.waiters.classes[rank].spare = Some(spare);
    }

    /// Subtracts the cost of a queued request from the `spare` of the waiters behind it.
    pub(super) fn delay_others(&mut self, fast: &FastPath, waiter: &Waiter, wakes: &mut Wakes) {
        let is_last = self.waiters.is_last(waiter);
        self.overtake(fast, waiter.rank + usize::from(is_last), waiter.cost, wakes);
    }

    /// Subtracts `cost` from the `spare` of the ranks from `rank` on. Refuses the waiters that can no longer be served in
    /// time.
    pub(super) fn overtake(&mut self, fast: &FastPath, rank: usize, cost: NonZeroU32, wakes: &mut Wakes) {
        let cost = u64::from(cost.get());
        let mut first_late = None;
        for rank in rank..self.waiters.classes.len() {
            let class = &mut self.waiters.classes[rank];
            if !class.entries.is_empty() {
                class.spare = class.spare.and_then(|spare| spare.checked_sub(cost));
                if class.spare.is_none() {
                    first_late = first_late.or(Some(rank));
                }
            }
        }
        if let Some(rank) = first_late {
            self.refuse_late(fast, rank, wakes);
        }
    }
}
