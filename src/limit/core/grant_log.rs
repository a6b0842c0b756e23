//! The exact log of the recent grants of one quota.

use std::{collections::VecDeque, mem};

use crate::policy::{Quota, nanos};

/// A log of requests with at least this many entries (64 KiB) drops grants that have left the window, so that it does
/// not grow up to the limit. A shorter log keeps them, in case a longer window replaces this one.
const LONGEST_HISTORY: usize = 4_096;

/// The window of a quota of another unit is divided into this many parts, so that the log has a bounded length. The
/// amounts of one part share an entry with the time of the last of them. Each amount then counts for at most 0.1 %
/// longer.
const PARTS: u64 = 1_024;

/// The most recently granted permits, or the amounts of recent grants, oldest first. After each grant, a log of
/// requests holds at most `limit` permits. The sum of amounts may exceed the limit, because requests may turn out to be
/// more expensive than estimated. A bucket's log of amounts has no limit, and serves returned amounts and reports. The
/// counters may wrap around, because only their differences are used.
#[derive(Debug, Clone)]
pub(super) struct GrantLog {
    grants: VecDeque<Entry>,
    /// The number of permits granted since the limiter was created.
    granted: u64,
    /// The number of granted permits that are no longer in the log.
    forgotten: u64,
    pub(super) limit: u64,
    /// How long a grant counts: the window, its margin, and 1 ns, because a window includes both of its ends.
    pub(super) window: u64,
    /// The length of the parts whose amounts share an entry. Zero for requests.
    part: u64,
}

/// All permits that were granted at the same time, or in the same part of the window.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: u64,
    /// The number of permits granted since the limiter was created, up to and including this entry, which has at least
    /// one. A binary search over these sums finds the k-th oldest permit.
    sum: u64,
}

/// Divides `total` into whole windows of `limit`, and the rest of the last one.
#[inline]
fn whole_windows(total: u64, limit: u64) -> (u64, u64) {
    match total {
        // Most requests fit into one window, so the division is skipped for them.
        total if total <= limit => (0, total),
        total => ((total - 1) / limit, (total - 1) % limit + 1),
    }
}

impl GrantLog {
    pub(super) fn new(quota: &Quota) -> Self {
        Self { grants: VecDeque::new(), granted: 0, forgotten: 0, limit: 0, window: 0, part: 0 }.under(quota)
    }

    /// Changes the quota of the log. If the new limit is lower, the log may hold more permits than the limit until the
    /// next grant. It is not shortened here, because the limit may be raised before that grant.
    pub(super) fn under(mut self, quota: &Quota) -> Self {
        self.limit = if quota.is_bucket() { u64::MAX } else { quota.limit().into() };
        self.window = nanos(quota.counted_for(quota.margin())).saturating_add(1);
        self.part = if quota.counts_requests() { 0 } else { (self.window / PARTS).max(1) };
        self
    }

    /// Returns the number of permits in the log up to and including this entry.
    fn up_to(&self, entry: &Entry) -> u64 {
        entry.sum.wrapping_sub(self.forgotten)
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

    /// Returns when `total` more permits can be granted, because enough old permits have left the window. The forecast
    /// is never too late. With amounts it can be too early, because several grants may not fill each window exactly.
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

    /// Adds permits or an amount. The amount may exceed the limit.
    pub(super) fn add(&mut self, now: u64, permits: u64) {
        while let Some(oldest) =
            self.grants.front().filter(|oldest| oldest.at.saturating_add(self.window) <= now)
        {
            // The permits of requests above the limit have left the window. Otherwise this grant would not be possible.
            let surplus = (self.len() + permits).saturating_sub(self.limit);
            let is_kept = self.part == 0 && self.grants.len() < LONGEST_HISTORY;
            if is_kept && self.up_to(oldest) > surplus {
                self.forgotten = self.forgotten.wrapping_add(surplus);
                break;
            }
            self.forgotten = oldest.sum;
            self.grants.pop_front();
        }
        if permits == 0 {
            return;
        }
        self.granted = self.granted.wrapping_add(permits);
        let is_same_part = |at: u64| self.part > 0 && at / self.part == now / self.part;
        match self.grants.back_mut() {
            // A change of quotas may have postponed the last grant beyond the present.
            Some(last) if last.at >= now || is_same_part(last.at) => {
                *last = Entry { at: last.at.max(now), sum: self.granted };
            }
            _ => self.grants.push_back(Entry { at: now, sum: self.granted }),
        }
    }

    /// Subtracts a part of the amount that was added at `added`, if it still counts. Returns whether it does. Its entry
    /// has a later time if later amounts share it.
    pub(super) fn give_back(&mut self, added: u64, amount: u64, now: u64) -> bool {
        if added.saturating_add(self.window) <= now {
            return false;
        }
        let (before, forgotten) = (self.len() - self.not_before(added), self.forgotten);
        // A larger amount was partly added later. The older entries come first, so that no window has room too early.
        let kept = |sum: u64| {
            let up_to = sum.wrapping_sub(forgotten);
            let later = up_to.saturating_sub(before).saturating_sub(amount);
            forgotten.wrapping_add(up_to.min(before) + later)
        };
        let mut last = forgotten;
        self.grants.retain_mut(|grant| {
            grant.sum = kept(grant.sum);
            mem::replace(&mut last, grant.sum) != grant.sum
        });
        self.granted = kept(self.granted);
        true
    }

    /// Returns the arrival time of a bucket from which only these amounts were taken, each at the time of its entry.
    pub(super) fn arrival(&self, interval: u64) -> u64 {
        let mut before = 0;
        self.grants.iter().fold(0, |arrival, entry| {
            let amount = self.up_to(entry) - mem::replace(&mut before, self.up_to(entry));
            arrival.max(entry.at).saturating_add(interval.saturating_mul(amount))
        })
    }

    /// Returns the number of permits that were granted at `start` or later.
    fn not_before(&self, start: u64) -> u64 {
        let earlier = self.grants.partition_point(|grant| grant.at < start).checked_sub(1);
        self.len() - earlier.and_then(|last| self.grants.get(last)).map_or(0, |last| self.up_to(last))
    }

    /// Returns the sum of the amounts that were added after `time`.
    pub(super) fn since(&self, time: u64) -> u64 {
        self.not_before(time.saturating_add(1))
    }

    /// Adds `delay` to the times of all grants.
    pub(super) fn postpone(&mut self, delay: u64) {
        self.grants.iter_mut().for_each(|grant| grant.at = grant.at.saturating_add(delay));
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        let held = now.checked_sub(self.window).map_or(self.len(), |end| self.since(end));
        self.limit.saturating_sub(held)
    }
}
