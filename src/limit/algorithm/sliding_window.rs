//! The sliding window algorithm: an exact log of recent grants.

use std::num::NonZeroU32;

use super::Algorithm;
use crate::{limit::core::grant_log::GrantLog, policy::Quota};

/// One log of grants for each quota.
#[derive(Debug)]
pub struct Logs {
    logs: Vec<GrantLog>,
}

// Uses the default `gather`, which delays no grant. A delayed grant leaves the window later and so lowers the
// throughput.
impl Algorithm for Logs {
    fn new(quotas: &[Quota]) -> Self {
        Self { logs: quotas.iter().map(GrantLog::new).collect() }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let free = self.forecast(now, cost.get().into(), cost.get()) <= now;
        if free {
            self.logs.iter_mut().for_each(|log| log.grant(now, cost.get().into()));
        }
        free
    }

    fn forecast(&self, start: u64, total: u64, _costliest: u32) -> u64 {
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

    fn postpone(&mut self, delay: u64) {
        self.logs.iter_mut().for_each(|log| log.postpone(delay));
    }

    fn change(&mut self, quotas: &[Quota], _: u64) {
        // The log of each quota records every grant, so each new quota starts with a copy of the longest log.
        let longest = self.logs.drain(..).max_by_key(GrantLog::len);
        let log = |quota| longest.clone().map_or_else(|| GrantLog::new(quota), |log| log.under(quota));
        self.logs = quotas.iter().map(log).collect();
    }
}

#[cfg(test)]
mod tests;
