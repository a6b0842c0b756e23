//! When permits are available under the configured quotas.

use super::{gcra::Gcra, grant_log::GrantLog};
use crate::policy::{Quota, nanos};

/// 2 ms in nanoseconds, which is twice the delay of a late timer. Waiters are served at least this long before a bucket
/// is full.
const LATE: u64 = 2_000_000;

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

/// The quotas of a limiter that count requests, or those that count other units. A request takes its permits from each
/// quota.
#[derive(Debug)]
pub struct Quotas {
    pub(super) rule: Rule,
    pub(super) states: Box<[QuotaState]>,
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

    fn largest(&self) -> u32 {
        if self.pace.is_some() { self.quota.burst() } else { self.quota.limit() }
    }

    /// Returns when the log has room for `total` and the bucket contains `paced`.
    #[inline]
    pub(super) fn free_at(&self, start: u64, total: u64, paced: u64) -> u64 {
        let by_pace = self.pace.as_ref().map_or(start, |pace| pace.due(start, paced));
        self.log.as_ref().map_or(by_pace, |log| log.forecast(start, total).max(by_pace))
    }

    fn due(&self, start: u64, total: u64, costliest: u64) -> u64 {
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
    fn singles(&self, now: u64) -> u64 {
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

    fn is_whole(&self, now: u64) -> bool {
        // A bucket has a log only for returned amounts, which a full bucket does not need.
        let log = self.log.as_ref().filter(|_| !self.quota.is_bucket());
        self.pace.as_ref().is_none_or(|pace| pace.arrival <= now)
            && log.is_none_or(|log| log.available(now) == log.limit)
    }
}

impl Quotas {
    pub fn new(quotas: &[Quota], rule: Rule) -> Self {
        Self::of(requests(quotas), rule)
    }

    /// Creates quotas that count requests, or quotas that count other units.
    pub(super) fn of<'a>(quotas: impl Iterator<Item = &'a Quota>, rule: Rule) -> Self {
        Self { rule, states: quotas.map(|quota| QuotaState::new(*quota, rule)).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Returns when the last of `total` permits is available, if none is taken before `start`. No request costs more
    /// than `costliest`. The result is never too late, but may be too early if requests cost several permits.
    pub fn due(&self, start: u64, total: u64, costliest: u64) -> u64 {
        self.states.iter().map(|state| state.due(start, total, costliest)).max().unwrap_or(start)
    }

    /// Takes permits that are available at `at`.
    pub fn take(&mut self, at: u64, cost: u64) {
        self.states.iter_mut().for_each(|state| state.take(at, cost, (cost, at)));
    }

    /// Returns the largest cost that the quotas can ever grant.
    pub fn largest(&self) -> u32 {
        self.states.iter().map(QuotaState::largest).min().unwrap_or(u32::MAX)
    }

    /// Returns the largest cost of a single request that is available now.
    pub fn available(&self, now: u64) -> u64 {
        self.states.iter().map(|state| state.available(now)).min().unwrap_or(u64::MAX)
    }

    /// Returns how many requests for one permit each are available now.
    pub(super) fn singles(&self, now: u64) -> u64 {
        self.states.iter().map(|state| state.singles(now)).min().unwrap_or(u64::MAX)
    }

    /// Returns whether every quota is fully available.
    pub(super) fn is_whole(&self, now: u64) -> bool {
        self.states.iter().all(|state| state.is_whole(now))
    }

    /// Returns how long grants may be late without a bucket becoming full, if the next one takes `cost` permits. Zero
    /// with a log, because a later grant would count for longer.
    pub(super) fn room(&self, cost: u64) -> u64 {
        let room = |state: &QuotaState| match (&state.pace, &state.log) {
            (Some(pace), None) => {
                pace.whole.saturating_sub(pace.interval.saturating_mul(cost)).saturating_sub(LATE) / 2
            }
            _ => 0,
        };
        self.states.iter().map(room).min().unwrap_or(0)
    }

    /// Spends available permits so that at most `permits` of them are left.
    pub fn leave(&mut self, permits: u32, now: u64) {
        for state in &mut self.states {
            if let Some(pace) = &mut state.pace {
                pace.leave(permits, now);
            } else if let Some(log) = &mut state.log {
                log.add(now, log.available(now).saturating_sub(permits.into()));
            }
        }
    }

    /// Moves the times of all grants so far forward by `delay`.
    pub(super) fn postpone(&mut self, delay: u64) {
        for state in &mut self.states {
            state.pace.iter_mut().for_each(|pace| pace.postpone(delay));
            state.log.iter_mut().for_each(|log| log.postpone(delay));
        }
    }

    /// Replaces the quotas. Spent permits still count, so the change does not make more permits available immediately.
    pub(super) fn change(&mut self, quotas: &[Quota], now: u64) {
        if requests(quotas).eq(self.states.iter().map(|state| &state.quota)) {
            return;
        }
        let old = std::mem::take(&mut self.states);
        let paces: Vec<_> = old.iter().filter_map(|state| state.pace.as_ref()).collect();
        // The log of each quota records every grant, so each new quota starts with a copy of the longest log.
        let longest = old.iter().filter_map(|state| state.log.as_ref()).max_by_key(|log| log.len());
        let state = |quota: &Quota| {
            let mut state = QuotaState::new(*quota, self.rule);
            match (&mut state.log, longest) {
                (Some(log), Some(longest)) => *log = longest.clone().under(quota),
                // A bucket has no log of its grants, so the limit counts as spent now.
                (Some(log), None) if !old.is_empty() => log.add(now, quota.limit().into()),
                _ => {}
            }
            state.pace.iter_mut().for_each(|pace| pace.replace(&paces, now));
            state
        };
        self.states = requests(quotas).map(state).collect();
    }
}

/// Returns whether a quota counts requests.
pub(crate) fn has_quota(quotas: &[Quota]) -> bool {
    requests(quotas).next().is_some()
}

/// Returns the quotas that count requests.
pub(super) fn requests(quotas: &[Quota]) -> impl Iterator<Item = &Quota> {
    quotas.iter().filter(|quota| quota.counts_requests())
}
