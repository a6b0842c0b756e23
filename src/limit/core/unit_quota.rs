//! The forecasts and the charges of a quota that counts tokens, points or another unit.

use super::quotas::QuotaState;
use crate::policy::{Amounts, Taken, Unit};

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
