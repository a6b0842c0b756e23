use std::{collections::VecDeque, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::{limit::core::grant_log::LONGEST_HISTORY, policy::nanos};

fn cost(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).unwrap()
}

#[test]
fn grant_log_never_has_more_entries_than_the_limit() {
    let quota = Quota::new(10, Duration::from_nanos(99)).unwrap().without_margin();
    let mut logs = Logs::new(&[quota]);
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
fn permits_granted_at_one_time_are_stored_in_one_entry() {
    let quota = Quota::new(u32::MAX, Duration::from_secs(1)).unwrap();
    let mut logs = Logs::new(&[quota]);
    for permits in [1, 5, u32::MAX - 6] {
        assert!(logs.take(cost(permits), 7));
    }
    assert!(!logs.take(cost(1), 7));
    assert_eq!((logs.logs[0].grants.len(), logs.logs[0].len()), (1, u64::from(u32::MAX)));
}

#[test]
fn long_log_drops_grants_outside_the_window() {
    let quota = Quota::new(u32::MAX, Duration::from_nanos(999)).unwrap().without_margin();
    let mut logs = Logs::new(&[quota]);
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
fn sliding_window_grants_correctly_after_its_counters_wrap_around() {
    let quota = Quota::new(10, Duration::from_nanos(99)).unwrap().without_margin();
    let mut logs = Logs::new(&[quota]);
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

/// A simple model of a sliding window: a log with one entry for each permit.
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
    fn sliding_window_grants_like_a_simple_reference_model(
        limits in prop::collection::vec((1_u32..20, 1_u64..50), 1..4),
        steps in prop::collection::vec((0_u64..20, 1_u32..20, 1_u64..60), 1..60),
    ) {
        let quota = |(limit, window)| Quota::new(limit, Duration::from_nanos(window)).unwrap().without_margin();
        let quotas: Vec<_> = limits.into_iter().map(quota).collect();
        let mut logs = Logs::new(&quotas[..1]);
        let mut naive = Naive::new(&quotas[0]);
        let (mut now, mut of) = (0, 0);
        for (pause, permits, total) in steps {
            now += pause;
            if pause == 19 {
                of = (of + 1) % quotas.len();
                logs.change(&quotas[of..=of], now);
                naive.change(&quotas[of]);
            }
            prop_assert_eq!(logs.forecast(now, total, 1), naive.forecast(now, total));
            let permits = 1 + permits % logs.largest();
            prop_assert_eq!(logs.take(cost(permits), now), naive.take(permits, now));
            prop_assert_eq!(logs.available(now), naive.available(now));
        }
    }
}
