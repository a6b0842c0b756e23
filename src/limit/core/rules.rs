//! The rules: when the permits of one quota are available. A token bucket spreads the permits, and an exact log of the
//! recent grants limits each window.

mod replaced;

use std::{collections::VecDeque, mem};

use self::replaced::Extra;
use crate::policy::{Quota, nanos};

/// How a limiter grants permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A bucket that refills so slowly that its burst fits into each window.
    TokenBucket,
    /// A bucket that refills the whole limit, and an exact log of recent grants.
    PacedWindow,
    /// An exact log of recent grants.
    SlidingWindow,
    /// A rate learned from the server, below paced windows of the quotas.
    Learned,
}

/// The permits of one quota, or the amounts of its unit.
#[derive(Debug)]
pub(super) struct QuotaState {
    pub(super) quota: Quota,
    /// Spreads the permits over the window.
    pub(super) pace: Option<Gcra>,
    pub(super) log: Option<GrantLog>,
}

impl QuotaState {
    /// Creates the state with all permits available.
    pub(super) fn new(quota: Quota, rule: Rule) -> Self {
        // A bucket of the server has no window with a fixed limit. Amounts need a log, because returned amounts would
        // otherwise let a bucket exceed the limit.
        let is_bucket = quota.is_bucket();
        let has_log = !quota.counts_requests() || !is_bucket && rule != Rule::TokenBucket;
        let log = has_log.then(|| GrantLog::new(&quota));
        let pace = match log.as_ref().filter(|_| !is_bucket) {
            Some(_) if rule == Rule::SlidingWindow => None,
            // Rounding down is safe, because the log is exact: no window exceeds the limit.
            Some(log) => Some(Gcra::new(log.window / log.limit.max(1), quota.burst())),
            None => Some(Gcra::new(nanos(quota.refill_interval()), quota.burst())),
        };
        Self { quota, pace, log }
    }

    /// Ends the wait for permits of earlier quotas once no earlier grant is in the window. The log remains exact.
    pub(super) fn limit_wait(&mut self, now: u64) {
        let log = self.log.as_ref().filter(|_| !self.quota.is_bucket());
        if let (Some(pace), Some(log)) = (&mut self.pace, log) {
            let whole_at = now.saturating_add(log.window).saturating_add(pace.whole);
            pace.arrival = pace.arrival.min(whole_at);
        }
    }

    pub(super) fn largest(&self) -> u32 {
        if self.pace.is_some() { self.quota.burst() } else { self.quota.limit() }
    }

    /// Returns when the log has room for `total` and the bucket contains `paced`.
    #[inline]
    pub(super) fn free_at(&self, start: u64, total: u64, paced: u64) -> u64 {
        let by_pace = self.pace.as_ref().map_or(start, |pace| pace.due(start, paced));
        self.log.as_ref().map_or(by_pace, |log| log.forecast(start, total).max(by_pace))
    }

    pub(super) fn due(&self, start: u64, total: u64, costliest: u64) -> u64 {
        let due = self.free_at(start, total, total);
        let (Some(log), Some(pace)) = (&self.log, self.pace.as_ref().filter(|_| total > 1)) else {
            return due;
        };
        // A grant that the log delays leaves the bucket empty (see `take`), so the next grants follow at even
        // intervals. The first delayed grant waits until a permit leaves the window. This is the oldest permit of the
        // log, or the first permit granted from `start` on.
        let after = |granted: u64, delayed: u64| match total.checked_sub(delayed) {
            Some(later) => {
                let evenly = later.saturating_sub(costliest.saturating_sub(1)).saturating_mul(pace.interval);
                granted.saturating_add(log.window).saturating_add(evenly)
            }
            None => start,
        };
        let first = pace.arrival.saturating_add(pace.interval).saturating_sub(pace.whole).max(start);
        let room = log.limit - log.len().min(log.limit);
        let oldest = log.granted_at(1).map_or(start, |oldest| after(oldest, room + 1));
        due.max(oldest).max(after(first, log.limit + 1))
    }

    /// Takes permits that are available at `at`. The log counts `logged` of them from `since` on.
    #[inline]
    pub(super) fn take(&mut self, at: u64, cost: u64, (logged, since): (u64, u64)) {
        if let Some(pace) = &mut self.pace {
            let freed = self.log.as_ref().map_or(0, |log| log.forecast(0, cost));
            pace.take_beside_log(at, cost, freed);
        }
        if let Some(log) = &mut self.log {
            log.add(since, logged);
        }
    }

    /// Returns the largest cost of a single request that is available now.
    pub(super) fn available(&self, now: u64) -> u64 {
        let by_pace = self.pace.as_ref().map_or(u64::MAX, |pace| pace.available(now));
        by_pace.min(self.log.as_ref().map_or(u64::MAX, |log| log.available(now)))
    }

    /// Returns how many requests for one permit each are available now. After a gap of the log, fewer such requests
    /// than permits are available, because the bucket is empty.
    pub(super) fn singles(&self, now: u64) -> u64 {
        let (Some(pace), Some(log)) = (&self.pace, &self.log) else { return self.available(now) };
        let room = log.limit - log.len().min(log.limit);
        let by_gap = log.granted_at(1).map_or(u64::MAX, |oldest| {
            match now.checked_sub(oldest.saturating_add(log.window)) {
                Some(since) => (room + 1).saturating_add(since / pace.interval),
                None => room,
            }
        });
        self.available(now).min(by_gap)
    }

    pub(super) fn is_whole(&self, now: u64) -> bool {
        // A bucket has a log only for returned amounts, which a full bucket does not need.
        let log = self.log.as_ref().filter(|_| !self.quota.is_bucket());
        self.pace.as_ref().is_none_or(|pace| pace.arrival <= now)
            && log.is_none_or(|log| log.available(now) == log.limit)
    }
}

/// An arrival time lies at most this far in the future: 146 years.
const FARTHEST: u64 = u64::MAX / 4;

/// The token bucket: the generic cell rate algorithm, with the same results as governor. Permits refill at even
/// intervals. All times are nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Gcra {
    pub(super) interval: u64,
    /// The time that an empty bucket takes to fill up.
    pub(super) whole: u64,
    /// The theoretical arrival time of the next permit. The bucket is full if this time lies in the past.
    pub(super) arrival: u64,
}

impl Gcra {
    /// Creates a full bucket.
    pub(super) fn new(interval: u64, burst: u32) -> Self {
        Self { interval: interval.max(1), whole: interval.max(1).saturating_mul(burst.into()), arrival: 0 }
    }

    /// Returns when `total` permits are available, if none is taken before `start`.
    pub(super) fn due(&self, start: u64, total: u64) -> u64 {
        self.due_from(self.arrival.max(start), start, total)
    }

    /// Returns when `total` permits are available if the arrival time is `from`, at `start` or later.
    fn due_from(&self, from: u64, start: u64, total: u64) -> u64 {
        let last = from.saturating_add(self.interval.saturating_mul(total));
        last.saturating_sub(self.whole).max(start)
    }

    /// Returns when an amount of `own` is available behind `ahead`, from a bucket that mirrors a server's. An amount
    /// above the burst is available some time after the bucket has become full, because the server's bucket holds more.
    /// The result is never too late.
    pub(super) fn due_behind(&self, start: u64, ahead: u64, own: u64) -> u64 {
        let from = if ahead > 0 && own > 0 { self.arrival.max(start) } else { self.arrival };
        // Nothing was taken from a new bucket.
        if from == 0 {
            return start;
        }
        self.due_from(from, start, ahead.saturating_add(own))
    }

    /// Takes permits that are available at `at`.
    pub(super) fn take(&mut self, at: u64, cost: u64) {
        let arrival = self.arrival.max(at).saturating_add(self.interval.saturating_mul(cost));
        self.arrival = arrival.min(at.saturating_add(FARTHEST));
    }

    /// Takes permits beside a log that has room for them at `freed`, or at once if that is zero. The refill starts then. If
    /// it started earlier, the bucket would be full by then, and would add its burst to each window.
    #[inline]
    pub(super) fn take_beside_log(&mut self, at: u64, cost: u64, freed: u64) {
        let spent = self.interval.saturating_mul(cost);
        let refill_from = if freed > 0 { freed.saturating_add(self.whole.saturating_sub(spent)) } else { 0 };
        self.take(at.max(refill_from), cost);
    }

    /// Adds taken permits back. Permits that were refilled since then are added twice, unless the arrival time would
    /// then be earlier than `earliest`.
    pub(super) fn give_back(&mut self, cost: u64, earliest: u64) {
        let returned = self.arrival.saturating_sub(self.interval.saturating_mul(cost));
        self.arrival = returned.max(earliest).min(self.arrival);
    }

    /// Returns the number of permits that are available at `now`.
    pub(super) fn available(&self, now: u64) -> u64 {
        self.whole.saturating_sub(self.arrival.saturating_sub(now)) / self.interval
    }

    /// Spends available permits so that at most `permits` of them are left.
    pub(super) fn leave(&mut self, permits: u32, now: u64) {
        let left = self.interval.saturating_mul(permits.into()).min(self.whole);
        self.arrival = self.arrival.max(now.saturating_add(self.whole - left));
    }

    /// Moves the arrival time forward by `delay`.
    pub(super) fn postpone(&mut self, delay: u64) {
        self.arrival = self.arrival.saturating_add(delay);
    }

    /// Sets the arrival time of a bucket that replaces `old`, and windows whose grants are in `log`. Spent permits still
    /// count.
    pub(super) fn replace(&mut self, old: &[&Self], log: Option<&GrantLog>, now: u64) {
        let missing = old.iter().map(|old| self.missing_after(old, now)).max().unwrap_or(0);
        let logged = log.map_or(0, |log| log.arrival_after(self).min(now.saturating_add(self.whole)));
        self.arrival = now.saturating_add(missing.min(FARTHEST)).max(logged);
    }

    /// Returns how long this bucket takes to fill up if it replaces `old`.
    fn missing_after(&self, old: &Self, now: u64) -> u64 {
        let missing = old.arrival.saturating_sub(now);
        let left = old.whole.saturating_sub(missing);
        // A larger burst becomes available gradually. Otherwise one window could contain both bursts.
        let taken = self.whole.saturating_sub(scaled(left, self.interval, old.interval, u128::div_euclid));
        // Also converts fractions of a permit. Otherwise each change of quotas would lose the permit that is being
        // refilled.
        scaled(missing, self.interval, old.interval, u128::div_ceil).max(taken)
    }
}

/// Returns how long some permits take to refill at `interval`, if they take `time` at the interval `before`.
fn scaled(time: u64, interval: u64, before: u64, divide: fn(u128, u128) -> u128) -> u64 {
    let scaled = divide(u128::from(time) * u128::from(interval), u128::from(before.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// A log of requests with at least this many entries (64 KiB) drops grants that have left the window, so that it does
/// not grow up to the limit. A shorter log keeps them, in case a longer window replaces this one.
const LONGEST_HISTORY: usize = 4_096;

/// The window of a quota of another unit is divided into this many parts, so that the log has a bounded length. The
/// amounts of one part share an entry with the time of the last of them. Each amount then counts for at most 0.1 %
/// longer.
const PARTS: u64 = 1_024;

/// The exact log of one quota: the most recently granted permits, or the amounts of recent grants, oldest first. After
/// each grant, a log of requests holds at most `limit` permits. The sum of amounts may exceed the limit, because
/// requests may turn out to be more expensive than estimated. A bucket's log of amounts has no limit, and serves
/// returned amounts and reports. The counters may wrap around, because only their differences are used.
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
    /// Boxed, so that the other logs take less memory.
    extra: Option<Box<Extra>>,
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
        Self { grants: VecDeque::new(), granted: 0, forgotten: 0, limit: 0, window: 0, extra: None }
            .under(quota)
    }

    /// Changes the quota of the log. If the new limit is lower, the log may hold more permits than the limit until the
    /// next grant. It is not shortened here, because the limit may be raised before that grant.
    pub(super) fn under(mut self, quota: &Quota) -> Self {
        self.limit = if quota.is_bucket() { u64::MAX } else { quota.limit().into() };
        self.window = nanos(quota.counted_for(quota.margin())).saturating_add(1);
        if !quota.counts_requests() {
            self.extra = Some(Box::new(Extra::Amounts { part: (self.window / PARTS).max(1) }));
        }
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
        let part = self.part();
        while let Some(oldest) =
            self.grants.front().filter(|oldest| oldest.at.saturating_add(self.window) <= now)
        {
            // The permits of requests above the limit have left the window. Otherwise this grant would not be possible.
            let surplus = (self.len() + permits).saturating_sub(self.limit);
            let is_kept = part == 0 && self.grants.len() < LONGEST_HISTORY;
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
        let is_same_part = |at: u64| part > 0 && at / part == now / part;
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
        self.extra.iter_mut().for_each(|extra| extra.postpone(delay));
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        let held = now.checked_sub(self.window).map_or(self.len(), |end| self.since(end));
        self.limit.saturating_sub(held)
    }
}

#[cfg(test)]
mod tests;
