//! The sliding window algorithm: an exact log of recent grants.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc};

use super::{Algorithm, bucket::Bucket};
use crate::{limit::queue::clock::nanos, policy::Quota};

/// Up to this length, 64 KiB, a log keeps grants that have left the window, in case a longer window replaces it. A
/// longer log drops them, so that it does not grow up to the limit.
const LONGEST_HISTORY: usize = 4_096;

/// One log of grants for each quota.
#[derive(Debug)]
pub struct Logs {
    logs: Vec<Log>,
}

/// The most recently granted permits, oldest first. Each grant shortens the log to at most as many permits as the
/// limit. The counters of permits may wrap around, because only their differences are used.
#[derive(Debug, Clone)]
struct Log {
    grants: VecDeque<Grant>,
    /// The number of permits granted since the limiter was created.
    granted: u64,
    /// The number of granted permits that are no longer in the log.
    forgotten: u64,
    limit: u64,
    /// How long a grant counts: the window, its margin, and 1 ns because both ends of a window are part of it.
    window: u64,
}

/// All permits that were granted at the same moment.
#[derive(Debug, Clone, Copy)]
struct Grant {
    at: u64,
    /// The number of permits granted since the limiter was created, up to and including this grant. A binary search for
    /// a sum finds the k-th oldest permit.
    sum: u64,
}

impl Log {
    fn new(quota: &Quota) -> Self {
        Self { grants: VecDeque::new(), granted: 0, forgotten: 0, limit: 0, window: 0 }.under(quota)
    }

    /// Returns this log under another quota. The log still may be longer than a lower limit: the next grant shortens
    /// it, because the limit may be raised before that.
    fn under(mut self, quota: &Quota) -> Self {
        self.limit = u64::from(quota.limit());
        self.window = nanos(quota.window().saturating_add(quota.margin())).saturating_add(1);
        self
    }

    /// Returns the number of permits in the log up to and including this grant.
    fn up_to(&self, grant: &Grant) -> u64 {
        grant.sum.wrapping_sub(self.forgotten)
    }

    /// Returns the number of permits in the log.
    fn len(&self) -> u64 {
        self.granted.wrapping_sub(self.forgotten)
    }

    /// Returns when the `oldest`-th permit of the log was granted, counted from 1.
    fn granted_at(&self, oldest: u64) -> Option<u64> {
        if oldest == 1 {
            return self.grants.front().map(|grant| grant.at);
        }
        let index = usize::try_from(oldest.checked_sub(1)?).unwrap_or(usize::MAX);
        // Usually each grant has one permit, so the index of the permit is the index of the grant and no search is
        // needed.
        let exact = self.grants.get(index).filter(|grant| self.up_to(grant) == oldest);
        let search = || self.grants.get(self.grants.partition_point(|grant| self.up_to(grant) < oldest));
        exact.or_else(search).map(|grant| grant.at)
    }

    /// Returns when enough old permits have left the window for `total` more permits.
    fn forecast(&self, start: u64, total: u64) -> u64 {
        let (windows, rest) = match total {
            // Most requests fit into one window, so they need no division.
            total if total <= self.limit => (0, total),
            total => ((total - 1) / self.limit, (total - 1) % self.limit + 1),
        };
        let leaving = (self.len() + rest).saturating_sub(self.limit);
        let first = self.granted_at(leaving).map_or(start, |at| at.saturating_add(self.window).max(start));
        first.saturating_add(windows.saturating_mul(self.window))
    }

    fn grant(&mut self, now: u64, cost: u64) {
        while let Some(oldest) = self.grants.front().filter(|_| self.grants.len() >= LONGEST_HISTORY) {
            if oldest.at.saturating_add(self.window) > now {
                break;
            }
            self.forgotten = oldest.sum;
            self.grants.pop_front();
        }
        // The surplus permits have left the window, because the grant would not be possible otherwise.
        let mut surplus = (self.len() + cost).saturating_sub(self.limit);
        self.granted = self.granted.wrapping_add(cost);
        while let Some(oldest) = self.grants.front().filter(|_| surplus > 0) {
            let permits = self.up_to(oldest);
            if permits > surplus {
                self.forgotten = self.forgotten.wrapping_add(surplus);
                break;
            }
            surplus -= permits;
            self.forgotten = oldest.sum;
            self.grants.pop_front();
        }
        match self.grants.back_mut() {
            Some(last) if last.at == now => last.sum = self.granted,
            _ => self.grants.push_back(Grant { at: now, sum: self.granted }),
        }
    }

    fn available(&self, now: u64) -> u64 {
        let left = self.grants.partition_point(|grant| grant.at.saturating_add(self.window) <= now);
        let expired =
            left.checked_sub(1).and_then(|last| self.grants.get(last)).map_or(0, |last| self.up_to(last));
        self.limit.saturating_sub(self.len() - expired)
    }
}

// `gather` is not overridden: a later grant leaves the window later, so a delay would lower the throughput.
impl Algorithm for Logs {
    fn new(quotas: &[Quota], _: Option<Arc<Bucket>>) -> Self {
        Self { logs: quotas.iter().map(Log::new).collect() }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let cost = u64::from(cost.get());
        let free = self.forecast(now, cost) <= now;
        if free {
            self.logs.iter_mut().for_each(|log| log.grant(now, cost));
        }
        free
    }

    fn forecast(&self, start: u64, total: u64) -> u64 {
        self.logs.iter().map(|log| log.forecast(start, total)).max().unwrap_or(start)
    }

    fn largest(&self) -> u32 {
        self.logs.iter().map(|log| log.limit as u32).min().unwrap_or(u32::MAX)
    }

    fn available(&self, now: u64) -> u32 {
        self.logs.iter().map(|log| log.available(now) as u32).min().unwrap_or(u32::MAX)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.logs.iter().all(|log| log.available(now) == log.limit)
    }

    fn leave(&mut self, permits: u32, now: u64) {
        for log in &mut self.logs {
            let surplus = log.available(now).saturating_sub(u64::from(permits));
            if surplus > 0 {
                log.grant(now, surplus);
            }
        }
    }

    fn change(&mut self, quotas: &[Quota], _: u64) {
        // Every grant counts for all quotas, so each new quota starts with the longest log.
        let longest = self.logs.drain(..).max_by_key(Log::len);
        let log = |quota| longest.clone().map_or_else(|| Log::new(quota), |log| log.under(quota));
        self.logs = quotas.iter().map(log).collect();
    }
}

#[cfg(test)]
mod tests;
