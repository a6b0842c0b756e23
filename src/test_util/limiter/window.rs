//! Counts permits in every window of a quota.

use crate::policy::{Quota, nanos};

/// The times of permits under one quota.
#[derive(Debug, Clone)]
pub(super) struct Window {
    limit: u64,
    length: u64,
    /// In the order of their times.
    times: Vec<(u64, u64)>,
}

impl Window {
    pub(super) fn new(quota: &Quota) -> Self {
        Self { limit: quota.limit().into(), length: nanos(quota.window()), times: Vec::new() }
    }

    /// Replaces the limit. Earlier permits count only if `keeps` is set.
    pub(super) fn change(&mut self, limit: u64, keeps: bool) {
        self.limit = limit;
        if !keeps {
            self.times.clear();
        }
    }

    /// Adds permits at `at`. Returns the number of permits in the fullest closed window that contains them.
    pub(super) fn add(&mut self, at: u64, cost: u64) -> u64 {
        let place = self.times.partition_point(|(time, _)| *time <= at);
        self.times.insert(place, (at, cost));
        let from = self.times.partition_point(|(time, _)| time.saturating_add(self.length) < at);
        let mut fullest = 0;
        for start in from..=place {
            let Some(&(first, _)) = self.times.get(start) else { break };
            let within = self.times[start..].iter().take_while(|(time, _)| *time - first <= self.length);
            fullest = fullest.max(within.map(|(_, cost)| cost).sum());
        }
        fullest
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }
}
