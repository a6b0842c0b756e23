//! The share of each quota that a process uses while the store does not reply.

use std::num::NonZeroU32;

use super::settings::require;
use crate::{
    config::InvalidConfig,
    limit::core::{Rule, Units, supply::Quotas},
    policy::{Amounts, Quota, Totals, Unit},
};

/// Divides each quota by the number of processes, and returns the shares of one process.
pub(super) fn parts(processes: u32, rule: Rule, quotas: &[Quota]) -> Result<Vec<Quota>, InvalidConfig> {
    let part = |quota: &Quota| {
        // The share of each process has at least one permit, and all shares together do not exceed the quota.
        let (max, setting) = match rule {
            _ if quota.refill().is_some() => (quota.limit(), "capacity"),
            Rule::TokenBucket if quota.counts_requests() => (quota.burst(), "burst"),
            _ => (quota.limit(), "limit"),
        };
        let expected = format!("1 to {max}, because a quota has a {setting} of {max}");
        require((1..=max).contains(&processes), "processes", processes, expected)?;
        let limit = quota.limit() / processes;
        if let Some((refill, per)) = quota.refill() {
            let bucket = Quota::bucket(limit, refill, per.saturating_mul(processes))?;
            return bucket.with_margin(quota.margin().min(bucket.window()))?.with_unit(quota.unit());
        }
        let burst = (quota.burst() / processes).clamp(1, (limit - 1).max(1));
        let part = Quota::new(limit, quota.window())?.with_margin(quota.margin())?.with_burst(burst)?;
        part.with_unit(quota.unit())
    };
    quotas.iter().map(part).collect()
}

/// The share of a process: its quotas, and the number of permits that were granted from the share.
pub(super) struct Share {
    pub(super) quotas: Quotas,
    /// The quotas that count other units than requests. `None` without one.
    pub(super) units: Option<Box<Units>>,
    /// The number of permits that were granted but not yet reported to the store. It never exceeds the limit of the
    /// share.
    pub(super) used: u64,
    used_at: u64,
    limit: u64,
    /// The time until which the process may use the share. Each further failed query postpones this time. After this
    /// time, the other processes may use the whole quota.
    pub(super) until: u64,
}

impl Share {
    /// Creates a share whose permits and amounts all count as spent at `at`, because the latest requests of the other
    /// processes are unknown.
    pub(super) fn begin(rule: Rule, quotas: &[Quota], at: u64, now: u64) -> Self {
        let mut own = Quotas::new(quotas, rule);
        own.leave(0, at);
        let requests = quotas.iter().filter(|quota| quota.counts_requests());
        let limit = requests.map(|quota| u64::from(quota.limit())).max().unwrap_or(0);
        // This counts as a change of the quotas at `now`, so amounts that were taken before `now` are not returned.
        let mut units = None;
        Units::change(&mut units, quotas, Rule::SlidingWindow, now);
        let all = Unit::NAMES.iter().fold(Amounts::NONE, |all, (unit, _)| all.with(*unit, u32::MAX));
        units.iter_mut().for_each(|units| units.take(at, &all, at));
        Self { quotas: own, units, used: 0, used_at: 0, limit, until: 0 }
    }

    pub(super) fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool {
        let permits = u64::from(cost.get());
        let is_free = self.units.as_ref().is_none_or(|units| units.due(now, &Totals::NONE, amounts) <= now);
        let taken = now < self.until && is_free && self.quotas.due(now, permits, permits) <= now;
        if taken {
            self.quotas.take(now, permits);
            self.units.iter_mut().for_each(|units| units.take(now, amounts, now));
            (self.used, self.used_at) = ((self.used + permits).min(self.limit), now);
        }
        taken
    }

    pub(super) fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        if start < self.until { self.quotas.due(start, total, costliest.into()) } else { start }
    }

    /// Returns the number of granted permits that the process has not reported to the store. Returns 0 if the share
    /// granted no permit within `longest`, the longest window.
    pub(super) fn used(&self, now: u64, longest: u64) -> u64 {
        if now.saturating_sub(self.used_at) > longest { 0 } else { self.used }
    }
}
