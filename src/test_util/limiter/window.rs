//! Counts permits in every window of a quota.

use super::state::Caller;
use crate::policy::{Quota, Taken, Unit, nanos};

/// The times of permits under one quota.
#[derive(Debug, Clone)]
pub(super) struct Window {
    limit: u64,
    length: u64,
    /// The permits that a bucket refills, and in which time.
    refill: Option<(u64, u64)>,
    /// In the order of their times.
    times: Vec<(u64, u64)>,
}

impl Window {
    pub(super) fn new(quota: &Quota) -> Self {
        let refill = quota.refill().map(|(refill, per)| (refill.into(), nanos(per)));
        Self { limit: quota.limit().into(), length: nanos(quota.window()), refill, times: Vec::new() }
    }

    /// Replaces the limit. Earlier permits count only if `keeps` is set.
    pub(super) fn change(&mut self, limit: u64, keeps: bool) {
        self.limit = limit;
        if !keeps {
            self.times.clear();
        }
    }

    /// Adds permits at `at`. Returns the number of permits in the fullest closed window that contains them. For a bucket,
    /// returns the number of permits that it would have to hold.
    pub(super) fn add(&mut self, at: u64, cost: u64) -> u64 {
        let place = self.times.partition_point(|(time, _)| *time <= at);
        self.times.insert(place, (at, cost));
        if let Some((refill, per)) = self.refill {
            return levels(&self.times, refill, per).max().unwrap_or(0);
        }
        let from = self.times.partition_point(|(time, _)| time.saturating_add(self.length) < at);
        let mut fullest = 0;
        for start in from..=place {
            let Some(&(first, _)) = self.times.get(start) else { break };
            let within = self.times[start..].iter().take_while(|(time, _)| *time - first <= self.length);
            fullest = fullest.max(within.map(|(_, cost)| cost).sum());
        }
        fullest
    }

    /// Returns the tokens that these callers take in the window that ends at `now`, or the level of the bucket. An
    /// amount above the limit counts as the limit, except for actual tokens from a bucket.
    pub(super) fn tokens_of(&self, callers: &[Caller], now: u64) -> u64 {
        let amount = |caller: &Caller| {
            let Taken { granted, charged, .. } = caller.tokens.taken;
            let most = if self.refill.is_some() && charged != granted { u64::MAX } else { self.limit };
            (caller.tokens.taken_at, u64::from(charged.get(Unit::Tokens)).min(most))
        };
        let mut times: Vec<_> = callers.iter().map(amount).collect();
        times.sort_unstable();
        match self.refill {
            Some((refill, per)) => levels(&times, refill, per).last().unwrap_or(0),
            None => times.iter().filter(|(at, _)| now - at <= self.length).map(|(_, tokens)| tokens).sum(),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }
}

/// Returns the level of a bucket after each of the permits.
fn levels(times: &[(u64, u64)], refill: u64, per: u64) -> impl Iterator<Item = u64> {
    // One permit is `per` units, so that the arithmetic is exact.
    let (mut level, mut before) = (0_u128, 0);
    times.iter().map(move |(at, cost)| {
        level = level.saturating_sub(u128::from(at - before) * u128::from(refill));
        level += u128::from(*cost) * u128::from(per);
        before = *at;
        u64::try_from(level.div_ceil(per.into())).unwrap_or(u64::MAX)
    })
}
