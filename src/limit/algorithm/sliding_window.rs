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
    /// The number of those permits that are no longer in the log.
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
        // Usually each grant has one permit. The index is then exact, so no search is needed.
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
        let gone =
            left.checked_sub(1).and_then(|last| self.grants.get(last)).map_or(0, |last| self.up_to(last));
        self.limit.saturating_sub(self.len() - gone)
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
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn cost(cost: u32) -> NonZeroU32 {
        NonZeroU32::new(cost).unwrap()
    }

    #[test]
    fn log_is_at_most_as_long_as_the_limit() {
        let quota = Quota::new(10, Duration::from_nanos(99)).unwrap().without_margin();
        let mut logs = Logs::new(&[quota], None);
        let mut granted = 0;
        for now in 0..10_000 {
            for permits in [1, 3, 10] {
                granted += u32::from(logs.take(cost(permits), now)) * permits;
                assert!(logs.logs[0].grants.len() <= 10 && logs.logs[0].len() <= 10);
            }
        }
        assert_eq!(granted, 1_000);
    }

    #[test]
    fn stores_permits_of_one_moment_in_one_entry() {
        let quota = Quota::new(u32::MAX, Duration::from_secs(1)).unwrap();
        let mut logs = Logs::new(&[quota], None);
        for permits in [1, 5, u32::MAX - 6] {
            assert!(logs.take(cost(permits), 7));
        }
        assert!(!logs.take(cost(1), 7));
        assert_eq!((logs.logs[0].grants.len(), logs.logs[0].len()), (1, u64::from(u32::MAX)));
    }

    #[test]
    fn drops_grants_outside_the_window_from_a_long_log() {
        let quota = Quota::new(u32::MAX, Duration::from_nanos(999)).unwrap().without_margin();
        let mut logs = Logs::new(&[quota], None);
        for now in 0..3 * LONGEST_HISTORY as u64 {
            assert!(logs.take(cost(2), now * 10));
            assert!(logs.logs[0].grants.len() <= LONGEST_HISTORY);
            assert_eq!(logs.available(now * 10), u32::MAX - 2 * (now + 1).min(100) as u32);
        }
        // The window is longer than this loop, so no grant leaves it.
        for now in 0..3 * LONGEST_HISTORY as u64 {
            assert!(logs.take(cost(1), 200_000 + now / 20));
        }
        assert_eq!(logs.available(200_614), u32::MAX - 3 * LONGEST_HISTORY as u32);
    }

    #[test]
    fn grants_correctly_after_counters_wrap_around() {
        let quota = Quota::new(10, Duration::from_nanos(99)).unwrap().without_margin();
        let mut logs = Logs::new(&[quota], None);
        (logs.logs[0].granted, logs.logs[0].forgotten) = (u64::MAX - 25, u64::MAX - 25);
        let mut naive = Naive::new(&quota);
        for now in 0..1_000 {
            for permits in [2, 1, 7] {
                assert_eq!(logs.take(cost(permits), now), naive.take(permits, now), "{permits} at {now}");
                assert_eq!(logs.available(now), naive.available(now), "{now}");
            }
        }
        assert!(logs.logs[0].forgotten < 1_000, "{}", logs.logs[0].forgotten);
    }

    /// A log with one entry for each permit, as a model.
    struct Naive {
        grants: VecDeque<u64>,
        limit: usize,
        window: u64,
    }

    impl Naive {
        fn new(quota: &Quota) -> Self {
            let mut naive = Self { grants: VecDeque::new(), limit: 0, window: 0 };
            naive.change(quota);
            naive
        }

        fn change(&mut self, quota: &Quota) {
            (self.limit, self.window) = (quota.limit() as usize, nanos(quota.window() + quota.margin()) + 1);
        }

        /// Returns when the last of `total` permits is granted, if each permit is granted separately and as early as
        /// possible.
        fn forecast(&self, start: u64, total: u64) -> u64 {
            let (mut grants, mut now) = (self.grants.clone(), start);
            for _ in 0..total {
                if let Some(oldest) = grants.len().checked_sub(self.limit) {
                    now = now.max(grants[oldest] + self.window);
                }
                grants.push_back(now);
            }
            now
        }

        fn take(&mut self, cost: u32, now: u64) -> bool {
            let free = self.forecast(now, cost.into()) <= now;
            if free {
                self.grants.extend((0..cost).map(|_| now));
                self.grants.drain(..self.grants.len().saturating_sub(self.limit));
            }
            free
        }

        fn available(&self, now: u64) -> u32 {
            let counting = self.grants.iter().filter(|at| **at + self.window > now).count();
            self.limit.saturating_sub(counting) as u32
        }
    }

    proptest! {
        #[test]
        fn matches_a_log_with_one_entry_per_permit(
            limits in prop::collection::vec((1_u32..20, 1_u64..50), 1..4),
            steps in prop::collection::vec((0_u64..20, 1_u32..20, 1_u64..60), 1..60),
        ) {
            let quota = |(limit, window)| Quota::new(limit, Duration::from_nanos(window)).unwrap().without_margin();
            let quotas: Vec<_> = limits.into_iter().map(quota).collect();
            let mut logs = Logs::new(&quotas[..1], None);
            let mut naive = Naive::new(&quotas[0]);
            let (mut now, mut of) = (0, 0);
            for (pause, permits, total) in steps {
                now += pause;
                if pause == 19 {
                    of = (of + 1) % quotas.len();
                    logs.change(&quotas[of..=of], now);
                    naive.change(&quotas[of]);
                }
                prop_assert_eq!(logs.forecast(now, total), naive.forecast(now, total));
                let permits = 1 + permits % logs.largest();
                prop_assert_eq!(logs.take(cost(permits), now), naive.take(permits, now));
                prop_assert_eq!(logs.available(now), naive.available(now));
            }
        }
    }
}
