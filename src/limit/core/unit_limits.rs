//! Applies the quotas of tokens, points and other units.

use std::num::NonZeroU32;

use super::{Core, slots::Waiter};
use crate::policy::{Amounts, Priority, Remaining, Totals};

impl Core {
    /// Returns the lowest limit of each unit.
    pub(super) fn unit_limits(&self) -> Amounts {
        self.units.as_ref().map_or(Amounts::NONE, |units| units.limits())
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

    /// Returns when a request gets its amounts behind those of `ahead`, at `due` or later.
    pub(super) fn due_behind(&self, due: u64, ahead: &Totals, amounts: &Amounts, now: u64) -> u64 {
        let start = self.server.opens_at(now);
        self.units.as_ref().map_or(due, |units| units.due(start, ahead, amounts).max(due))
    }

    /// Takes the permits and the limited amounts of a request from the store. Returns when it took them.
    #[inline(never)]
    pub(super) fn take_from_source(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> Option<u64> {
        let amounts = amounts.limited_by(&self.unit_limits());
        self.supply.source_mut()?.take(cost, &amounts, now).then_some(now)
    }

    /// Reports the amounts of a request to the store, if there is one.
    fn settle_in_source(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) {
        let limits = self.unit_limits();
        if let Some(source) = self.supply.source_mut() {
            let [charged, actual] = [charged, actual].map(|amounts| amounts.limited_by(&limits));
            source.settle(taken_at, &charged, &actual, now);
        }
    }

    /// Replaces the amounts that a request took at `taken_at`. A larger amount delays the next requests. A smaller
    /// amount returns the difference to the quotas.
    pub fn settle(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) {
        self.settle_in_source(taken_at, charged, actual, now);
        let Some(units) = &mut self.units else { return };
        let is_more = units.settle(taken_at, charged, actual, now);
        self.lateness.hold(now);
        if is_more {
            self.overtake(0, now);
        }
        self.advance(now);
    }

    /// Ends permits that were granted to a waiter at `at`, and returns its amounts, because its request is not sent.
    pub(super) fn waste_queued(&mut self, waiter: &Waiter, at: u64, now: u64) {
        self.settle_in_source(at, &waiter.amounts, &Amounts::NONE, now);
        self.units.iter_mut().for_each(|units| _ = units.settle(at, &waiter.amounts, &Amounts::NONE, now));
        self.waste(waiter.cost, at, now);
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
