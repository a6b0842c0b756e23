//! The paced window algorithm: a token bucket at the full rate, bounded by an exact log of recent grants.

use std::num::NonZeroU32;

use super::{Algorithm, bucket::LATEST, token_bucket::carried};
use crate::{limit::core::grant_log::GrantLog, policy::Quota};

/// One bucket and one log for each quota.
#[derive(Debug)]
pub struct PacedLogs {
    quotas: Vec<PacedLog>,
}

/// A bucket that refills the whole limit in the time of a window and its margin. The burst and the refill of one window
/// together exceed the limit. The log therefore delays the grants above the limit.
#[derive(Debug)]
struct PacedLog {
    log: GrantLog,
    quota: Quota,
    interval: u64,
    /// The time that an empty bucket takes to fill up.
    whole: u64,
    /// The bucket is full if this time lies in the past.
    arrival: u64,
}

impl PacedLog {
    fn new(quota: Quota, log: GrantLog, arrival: u64) -> Self {
        // Rounding down is safe, because the log is exact: no window exceeds the limit.
        let interval = (log.window / log.limit.max(1)).max(1);
        let whole = interval.saturating_mul(quota.burst().into());
        Self { log, quota, interval, whole, arrival }
    }

    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        let refilled = self.arrival.max(start).saturating_add(self.interval.saturating_mul(total));
        let by_bucket = refilled.saturating_sub(self.whole);
        // A grant that the log delays leaves the bucket empty (see `grant`), so the next grants follow at even
        // intervals. The first delayed grant waits until a permit leaves the window. This is the oldest permit of the
        // log, or the first permit granted from `start` on.
        let after = |granted: u64, delayed: u64| match total.checked_sub(delayed) {
            Some(later) => {
                let evenly = later.saturating_sub(u64::from(costliest) - 1).saturating_mul(self.interval);
                granted.saturating_add(self.log.window).saturating_add(evenly)
            }
            None => start,
        };
        let first = self.arrival.saturating_add(self.interval).saturating_sub(self.whole).max(start);
        let (limit, logged) = (self.log.limit, self.log.len().min(self.log.limit));
        let oldest = self.log.granted_at(1).map_or(start, |oldest| after(oldest, limit - logged + 1));
        let by_gap = oldest.max(after(first, limit + 1));
        self.log.forecast(start, total).max(by_bucket).max(by_gap)
    }

    fn grant(&mut self, now: u64, cost: u64) {
        // The refill starts when the log has room for this grant. If it started earlier, the bucket would be full by
        // then, and would add its burst to each window.
        let freed = self.log.forecast(0, cost);
        let spent = self.interval.saturating_mul(cost);
        let earning = if freed > 0 { freed.saturating_add(self.whole.saturating_sub(spent)) } else { 0 };
        self.arrival = self.arrival.max(earning).max(now).saturating_add(spent).min(LATEST);
        self.log.grant(now, cost);
    }

    fn available(&self, now: u64) -> u64 {
        let spent = self.arrival.saturating_sub(now).div_ceil(self.interval);
        u64::from(self.quota.burst()).saturating_sub(spent).min(self.log.available(now))
    }
}

// Uses the default `gather`, which delays no grant. A delayed grant would count in the window for longer, which lowers
// the throughput.
impl Algorithm for PacedLogs {
    fn new(quotas: &[Quota]) -> Self {
        let new = |quota: &Quota| PacedLog::new(*quota, GrantLog::new(quota), 0);
        Self { quotas: quotas.iter().map(new).collect() }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let free = self.forecast(now, cost.get().into(), cost.get()) <= now;
        if free {
            self.quotas.iter_mut().for_each(|quota| quota.grant(now, cost.get().into()));
        }
        free
    }

    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        self.quotas.iter().map(|quota| quota.forecast(start, total, costliest)).max().unwrap_or(start)
    }

    fn largest(&self) -> u32 {
        self.quotas.iter().map(|paced| paced.quota.burst()).min().unwrap_or(u32::MAX)
    }

    fn available(&self, now: u64) -> u32 {
        self.quotas.iter().map(|quota| quota.available(now) as u32).min().unwrap_or(u32::MAX)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.quotas.iter().all(|quota| quota.arrival <= now && quota.log.available(now) == quota.log.limit)
    }

    fn leave(&mut self, permits: u32, now: u64) {
        for quota in &mut self.quotas {
            let left = quota.interval.saturating_mul(permits.into()).min(quota.whole);
            quota.arrival = quota.arrival.max(now.saturating_add(quota.whole - left));
        }
    }

    fn postpone(&mut self, delay: u64) {
        for quota in &mut self.quotas {
            quota.arrival = quota.arrival.saturating_add(delay).min(LATEST);
            quota.log.postpone(delay);
        }
    }

    fn change(&mut self, quotas: &[Quota], now: u64) {
        if quotas.iter().eq(self.quotas.iter().map(|paced| &paced.quota)) {
            return;
        }
        let old = std::mem::take(&mut self.quotas);
        // The log of each quota records every grant, so each new quota starts with a copy of the longest log.
        let longest = old.iter().map(|paced| &paced.log).max_by_key(|log| log.len());
        let new = |quota: &Quota| {
            let log = longest.map_or_else(|| GrantLog::new(quota), |log| log.clone().under(quota));
            let mut paced = PacedLog::new(*quota, log, now);
            let missing = old.iter().map(|old| {
                let missing = old.arrival.saturating_sub(now);
                carried(missing, (old.interval, old.whole), (paced.interval, paced.whole))
            });
            paced.arrival = now.saturating_add(missing.max().unwrap_or(0)).min(LATEST);
            paced
        };
        self.quotas = quotas.iter().map(new).collect();
    }
}

#[cfg(test)]
mod tests;
