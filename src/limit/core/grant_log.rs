//! The exact log of recent grants of one quota.

use std::collections::VecDeque;

use crate::policy::{Quota, nanos};

/// A log with at least this many entries (64 KiB) drops grants that have left the window, so that it does not grow up
/// to the limit. A shorter log keeps them, in case a longer window replaces this one.
pub(super) const LONGEST_HISTORY: usize = 4_096;

/// The most recently granted permits, oldest first. After each grant, the log holds at most `limit` permits. The permit
/// counters may wrap around, because only their differences are used.
#[derive(Debug, Clone)]
pub(super) struct GrantLog {
    pub(super) grants: VecDeque<Entry>,
    /// The number of permits granted since the limiter was created.
    pub(super) granted: u64,
    /// The number of granted permits that are no longer in the log.
    pub(super) forgotten: u64,
    pub(super) limit: u64,
    /// How long a grant [counts](counted_window).
    pub(super) window: u64,
}

/// All permits that were granted at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    at: u64,
    /// The number of permits granted since the limiter was created, up to and including this grant. A binary search
    /// over these sums finds the k-th oldest permit.
    sum: u64,
}

/// Returns how long a grant counts: the window, its margin, and 1 ns, because a window includes both of its ends.
pub(super) fn counted_window(quota: &Quota) -> u64 {
    nanos(quota.window().saturating_add(quota.margin())).saturating_add(1)
}

/// Divides `total` into whole windows of `limit`, and the rest of the last one.
#[inline]
pub(super) fn whole_windows(total: u64, limit: u64) -> (u64, u64) {
    match total {
        // Most requests fit into one window, so the division is skipped for them.
        total if total <= limit => (0, total),
        total => ((total - 1) / limit, (total - 1) % limit + 1),
    }
}

impl GrantLog {
    pub(super) fn new(quota: &Quota) -> Self {
        Self { grants: VecDeque::new(), granted: 0, forgotten: 0, limit: 0, window: 0 }.under(quota)
    }

    /// Changes the quota of the log. If the new limit is lower, the log may hold more permits than the limit until the
    /// next grant. It is not shortened here, because the limit may be raised before that grant.
    pub(super) fn under(mut self, quota: &Quota) -> Self {
        self.limit = u64::from(quota.limit());
        self.window = counted_window(quota);
        self
    }

    /// Returns the number of permits in the log up to and including this grant.
    fn up_to(&self, grant: &Entry) -> u64 {
        grant.sum.wrapping_sub(self.forgotten)
    }

    /// Returns the number of permits in the log.
    pub(super) fn len(&self) -> u64 {
        self.granted.wrapping_sub(self.forgotten)
    }

    /// Returns when the permit with the number `oldest` was granted. The oldest permit of the log has the number 1.
    pub(super) fn granted_at(&self, oldest: u64) -> Option<u64> {
        if oldest == 1 {
            return self.grants.front().map(|grant| grant.at);
        }
        let index = usize::try_from(oldest.checked_sub(1)?).unwrap_or(usize::MAX);
        // Usually each grant has one permit. The index of the permit is then the index of its grant, and no search is
        // needed.
        let exact = self.grants.get(index).filter(|grant| self.up_to(grant) == oldest);
        let search = || self.grants.get(self.grants.partition_point(|grant| self.up_to(grant) < oldest));
        exact.or_else(search).map(|grant| grant.at)
    }

    /// Returns when `total` more permits can be granted, because enough old permits have left the window.
    #[inline]
    pub(super) fn forecast(&self, start: u64, total: u64) -> u64 {
        if total == 1 && self.len() <= self.limit {
            let oldest = self.grants.front().filter(|_| self.len() == self.limit);
            return oldest.map_or(start, |oldest| oldest.at.saturating_add(self.window).max(start));
        }
        self.forecast_many(start, total)
    }

    fn forecast_many(&self, start: u64, total: u64) -> u64 {
        let (windows, rest) = whole_windows(total, self.limit);
        let leaving = (self.len() + rest).saturating_sub(self.limit);
        let first = self.granted_at(leaving).map_or(start, |at| at.saturating_add(self.window).max(start));
        first.saturating_add(windows.saturating_mul(self.window))
    }

    pub(super) fn grant(&mut self, now: u64, cost: u64) {
        while let Some(oldest) = self.grants.front().filter(|_| self.grants.len() >= LONGEST_HISTORY) {
            if oldest.at.saturating_add(self.window) > now {
                break;
            }
            self.forgotten = oldest.sum;
            self.grants.pop_front();
        }
        // The permits above the limit have already left the window. Otherwise this grant would not be possible.
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
            // A change of quotas may have postponed the last grant beyond the present.
            Some(last) if last.at >= now => last.sum = self.granted,
            _ => self.grants.push_back(Entry { at: now, sum: self.granted }),
        }
    }

    /// Adds `delay` to the times of all grants.
    pub(super) fn postpone(&mut self, delay: u64) {
        self.grants.iter_mut().for_each(|grant| grant.at = grant.at.saturating_add(delay));
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        let left = self.grants.partition_point(|grant| grant.at.saturating_add(self.window) <= now);
        let expired =
            left.checked_sub(1).and_then(|last| self.grants.get(last)).map_or(0, |last| self.up_to(last));
        self.limit.saturating_sub(self.len() - expired)
    }
}
