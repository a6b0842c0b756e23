//! Applies the quotas of tokens, points and other units.

use std::num::NonZeroU32;

use super::{Core, bounds::RECHECK};
use crate::policy::{Amounts, Remaining, Totals};

impl Core {
    /// Returns when a new request gets its amounts, at `due` or later. Lower priorities may delay it further.
    pub(super) fn due_of_units(&self, due: u64, rank: usize, amounts: &Amounts, now: u64) -> u64 {
        let ahead = self.queue.amounts.as_ref().map_or(Totals::NONE, |queued| queued.up_to(rank));
        self.due_behind(due, &ahead, amounts, now)
    }

    /// Returns when the head gets its amounts, at `due` or later.
    pub(super) fn due_of_head_units(&self, due: u64, slot: u32, now: u64) -> u64 {
        self.due_behind(due, &Totals::NONE, &self.queue.amounts_of(slot), now)
    }

    /// Returns when a request gets its amounts behind those of `ahead`, at `due` or later.
    pub(super) fn due_behind(&self, due: u64, ahead: &Totals, amounts: &Amounts, now: u64) -> u64 {
        let start = self.server.opens_at(now);
        self.units.as_ref().map_or(due, |units| units.due(start, ahead, amounts).max(due))
    }

    /// Replaces the amounts that a request took at `taken_at`. A larger amount delays the next requests. A smaller
    /// amount returns the difference to the quotas.
    pub fn settle(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) {
        let Some(units) = &mut self.units else { return };
        let is_more = units.settle(taken_at, charged, actual, now);
        self.lateness.hold(now);
        if is_more && self.queue.bounded > 0 {
            // The waiters that are too late now are refused together.
            self.recheck_by(now.saturating_add(RECHECK));
        }
        self.advance(now);
    }

    /// Ends permits that were granted to a waiter at `at`, and returns its amounts, because its request is not sent.
    pub(super) fn waste_queued(&mut self, slot: u32, cost: NonZeroU32, at: u64, now: u64) {
        let amounts = self.queue.amounts_of(slot);
        self.units.iter_mut().for_each(|units| _ = units.settle(at, &amounts, &Amounts::NONE, now));
        self.waste(cost, at, now);
    }

    /// Applies the remaining amounts that the server reports, if the limiter obeys them.
    pub(super) fn report_units(&mut self, others: &[Remaining], sent_at: u64, now: u64) {
        if self.obeys_remaining {
            self.units.iter_mut().for_each(|units| units.report(others, sent_at, now));
        }
    }
}
