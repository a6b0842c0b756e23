//! The amounts of requests: what they take of a quota of tokens, points or another unit, what the waiters need, and
//! what is settled.

use super::{Core, rules::QuotaState, waiters::Waiter};
use crate::policy::{Amounts, Priority, Remaining, Taken, Totals, Unit};

/// An actual amount counts as at most this many capacities of a bucket, so that a wrong amount does not stop a limiter
/// for long.
const MOST_CAPACITIES: u64 = 10;

impl QuotaState {
    pub(super) fn unit(&self) -> Unit {
        self.quota.unit()
    }

    /// Returns the amount for which a request waits. The log of a window contains its whole amount.
    pub(super) fn own(&self, amounts: &Amounts) -> u64 {
        amounts.get(self.unit()).min(self.quota.limit()).into()
    }

    /// Returns what an amount takes from the bucket. An amount equal to the estimate of the request counts as at most
    /// the capacity. Any other amount of a bucket counts as at most ten times the capacity, because the server charges
    /// all of it.
    pub(super) fn charge(&self, amounts: &Amounts, granted: &Amounts) -> u64 {
        let amount = amounts.get(self.unit());
        let most =
            if self.quota.is_bucket() && amount != granted.get(self.unit()) { MOST_CAPACITIES } else { 1 };
        u64::from(amount).min(most * u64::from(self.quota.limit()))
    }

    /// Returns when `own` is available behind the amounts of `ahead`.
    pub(super) fn due_behind(&self, start: u64, ahead: u64, own: u64) -> u64 {
        let total = ahead.saturating_add(own);
        if total == 0 {
            return start;
        }
        if let Some(pace) = self.pace.as_ref().filter(|_| self.quota.is_bucket()) {
            return pace.due_behind(start, ahead, own);
        }
        let (limit, burst) = (u64::from(self.quota.limit()), u64::from(self.quota.burst()));
        // An amount above the burst waits until the bucket is full. Without an own amount, the last request ahead may
        // be such a one.
        let paced = match own {
            0 => ahead.min(burst.max(ahead.saturating_sub(limit - burst))),
            own => ahead.saturating_add(own.min(burst)),
        };
        self.free_at(start, total, paced)
    }

    /// Replaces the amount that was taken at `taken_at`. Returns whether it is larger.
    pub(super) fn settle(
        &mut self,
        taken_at: Option<u64>,
        taken: &Taken,
        actual: &Amounts,
        now: u64,
    ) -> bool {
        let amounts = [&taken.charged, actual];
        let paced = amounts.map(|amounts| self.charge(amounts, &taken.granted));
        let (unit, is_bucket) = (self.unit(), self.quota.is_bucket());
        let logged = if is_bucket { paced } else { amounts.map(|amounts| amounts.get(unit).into()) };
        let [more, less] = differences(logged);
        let mut is_returned = taken_at.is_some();
        if let Some(log) = &mut self.log {
            log.add(now, more);
            let is_counted = taken_at.is_some_and(|taken_at| log.give_back(taken_at, less, now));
            is_returned &= is_counted || !is_bucket;
        }
        if let Some(pace) = &mut self.pace {
            let [more, less] = differences(paced);
            pace.take(now, more);
            if is_returned {
                // The amounts that were taken later may have filled the bucket up without the returned one.
                let log = self.log.as_ref().filter(|_| is_bucket && less > 0);
                pace.give_back(less, log.map_or(0, |log| log.arrival(pace.interval)));
            }
        }
        more > 0
    }
}

/// Returns by how much the second amount is larger, and by how much smaller.
pub(super) fn differences([before, after]: [u64; 2]) -> [u64; 2] {
    [after.saturating_sub(before), before.saturating_sub(after)]
}

/// The sums of the amounts of the waiters.
#[derive(Debug, Clone)]
pub(super) struct QueuedAmounts {
    /// The lowest limit of each unit. An amount above it counts as the limit in the sums.
    limits: Amounts,
    wanted: [Totals; Priority::COUNT],
}

impl QueuedAmounts {
    pub(super) fn new(limits: Amounts) -> Self {
        Self { limits, wanted: [Totals::NONE; Priority::COUNT] }
    }

    /// Changes the limits. All waiters must [enter](Self::enter) again.
    pub(super) fn begin(&mut self, limits: Amounts) {
        (self.limits, self.wanted) = (limits, [Totals::NONE; Priority::COUNT]);
    }

    /// Returns the amounts of a waiter, up to the limits.
    pub(super) fn counted(&self, amounts: &Amounts) -> Amounts {
        amounts.zip(&self.limits, u32::min)
    }

    /// Adds the amounts of a waiter to the sums.
    pub(super) fn enter(&mut self, amounts: &Amounts, rank: usize) {
        let counted = self.counted(amounts);
        self.wanted[rank].add(&counted);
    }

    pub(super) fn leave(&mut self, amounts: &Amounts, rank: usize) {
        let counted = self.counted(amounts);
        self.wanted[rank].remove(&counted);
    }

    /// Returns the amounts of all waiters of this rank.
    pub(super) fn of_rank(&self, rank: usize) -> Totals {
        self.wanted[rank]
    }

    /// Returns the amounts of all waiters of a higher priority than that of `rank`.
    pub(super) fn higher(&self, rank: usize) -> Totals {
        self.wanted.iter().take(rank).fold(Totals::NONE, |sum, own| sum.plus(own))
    }
}

/// Returns the amounts before those of a request, which gets its permits with the last of `total` permits. `needed` of
/// these permits belong to its rank and the higher ones. A lower priority with a share is served before some of the
/// higher ones, whose amounts then do not count.
pub(super) fn ahead(total: u64, needed: u64, of_rank: Totals, higher: Totals) -> Totals {
    if total < needed { of_rank } else { higher.plus(&of_rank) }
}

impl Core {
    /// Returns the lowest limit of each unit.
    pub(super) fn unit_limits(&self) -> Amounts {
        self.units.as_ref().map_or(Amounts::NONE, |units| units.limits())
    }

    /// Returns whether no amount exceeds the limit of a quota. A larger amount waits only for the limit.
    pub fn fits(&self, amounts: &Amounts) -> bool {
        self.units.as_ref().is_none_or(|units| units.fit(amounts))
    }

    /// Changes the limits of the amounts of all waiters.
    pub(super) fn limit_amounts(&mut self) {
        if self.queue.amounts.is_none() {
            return;
        }
        let (limits, queue) = (self.unit_limits(), &mut *self.queue);
        let Some(amounts) = &mut queue.amounts else { return };
        amounts.begin(limits);
        for rank in 0..Priority::COUNT {
            queue.slots.iter(rank).for_each(|slot| amounts.enter(&slot.waiter.amounts, rank));
        }
    }

    /// Replaces the amounts that a request took at `taken_at`. A larger amount delays the next requests. A smaller
    /// amount returns the difference to the quotas.
    pub fn settle(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) {
        self.settle_in_source(taken_at, taken, actual, now);
        let Some(is_more) = self.settle_units(taken_at, taken, actual, now) else { return };
        self.lateness.hold(now);
        if is_more {
            self.overtake(0, now);
        }
        self.advance(now);
    }

    /// Replaces the amounts that a request took. Returns whether it takes more of a unit than before, or `None` without
    /// units.
    fn settle_units(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) -> Option<bool> {
        let units = self.units.as_mut()?;
        let is_more = units.settle(taken_at, taken, actual, now);
        let learned = units.learned.iter_mut().map(|unit| unit.settle(taken_at, taken, actual, now));
        Some(learned.fold(is_more, |any, is_more| any | is_more))
    }

    /// Ends permits that were granted to a waiter at `at`, and returns its amounts, because its request is not sent.
    pub(super) fn waste_queued(&mut self, waiter: &Waiter, at: u64, now: u64) {
        let taken = Taken::of(waiter.amounts);
        self.settle_in_source(at, &taken, &Amounts::NONE, now);
        self.settle_units(at, &taken, &Amounts::NONE, now);
        self.waste(waiter.cost, at, &Taken::unsent(waiter.amounts), now);
        // A waiter that was in flight before stays in flight.
        if !waiter.is_in_flight {
            self.leave_flight(false, now);
        }
    }

    /// Applies the remaining amounts that the server reports, if the limiter obeys them.
    pub(super) fn report_units(&mut self, others: &[Remaining], sent_at: u64, now: u64) {
        let longest = self.server.pause.settings.longest;
        let units = self.units.as_mut().filter(|_| self.obeys_remaining);
        if units.is_some_and(|units| units.report(others, sent_at, longest, now)) {
            self.overtake(0, now);
        }
    }
}
