//! The arithmetic of the sliding window: the moments of the last grants, exactly.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc};

use super::{gcra::Bucket, meter::Meter, nanos};
use crate::policy::Quota;

/// One log of grants for each quota.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<Ring>,
}

/// The moments of the last grants, oldest first, no more than the quota's limit of them once it has granted.
#[derive(Debug)]
struct Ring {
    grants: VecDeque<u64>,
    limit: usize,
    /// A grant counts for this long. One nanosecond more than the window, whose both ends count.
    window: u64,
}

impl Ring {
    fn new(quota: &Quota) -> Self {
        let mut ring = Self { grants: VecDeque::new(), limit: 0, window: 0 };
        ring.change(quota);
        ring
    }

    fn change(&mut self, quota: &Quota) {
        self.limit = quota.limit() as usize;
        self.window = nanos(quota.window().saturating_add(quota.guard())).saturating_add(1);
        // The log stays as long as it is until the next grant: the limit may grow again.
    }

    /// When `total` more grants are possible: as many of the oldest must have left the window as don't fit
    /// beside them.
    fn forecast(&self, start: u64, total: u64) -> u64 {
        let limit = self.limit as u64;
        let (windows, rest) = (total.saturating_sub(1) / limit, total.saturating_sub(1) % limit + 1);
        let leaving = (self.grants.len() as u64 + rest).saturating_sub(limit) as usize;
        let first = match leaving.checked_sub(1).and_then(|oldest| self.grants.get(oldest)) {
            Some(grant) => grant.saturating_add(self.window).max(start),
            None => start,
        };
        first.saturating_add(windows.saturating_mul(self.window))
    }

    fn grant(&mut self, now: u64, cost: u32) {
        // What has to make way has left the window, or the grant could not be.
        let surplus = (self.grants.len() + cost as usize).saturating_sub(self.limit);
        self.grants.drain(..surplus.min(self.grants.len()));
        self.grants.extend(std::iter::repeat_n(now, cost as usize));
    }

    fn available(&self, now: u64) -> u32 {
        let gone = self.grants.partition_point(|grant| grant.saturating_add(self.window) <= now);
        (self.limit - (self.grants.len() - gone).min(self.limit)) as u32
    }
}

impl Meter for Rings {
    fn new(quotas: &[Quota], _: Option<Arc<Bucket>>) -> Self {
        Self { rings: quotas.iter().map(Ring::new).collect() }
    }

    fn shared(_: &[Quota]) -> Option<Arc<Bucket>> {
        None
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let free = self.forecast(now, u64::from(cost.get())) <= now;
        if free {
            self.rings.iter_mut().for_each(|ring| ring.grant(now, cost.get()));
        }
        free
    }

    fn forecast(&self, start: u64, total: u64) -> u64 {
        self.rings.iter().map(|ring| ring.forecast(start, total)).max().unwrap_or(start)
    }

    fn largest(&self) -> u32 {
        self.rings.iter().map(|ring| ring.limit as u32).min().unwrap_or(u32::MAX)
    }

    fn available(&self, now: u64) -> u32 {
        self.rings.iter().map(|ring| ring.available(now)).min().unwrap_or(u32::MAX)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.rings.iter().all(|ring| ring.available(now) as usize == ring.limit)
    }

    fn empty(&mut self, now: u64) {
        for ring in &mut self.rings {
            ring.grant(now, ring.limit as u32);
        }
    }

    fn change(&mut self, quotas: &[Quota], _: u64) {
        // Each new quota begins with the longest log there is: what was granted counts for all of them.
        let longest = self.rings.drain(..).max_by_key(|ring| ring.grants.len());
        let grants = longest.map(|ring| ring.grants).unwrap_or_default();
        self.rings = quotas
            .iter()
            .map(|quota| {
                let mut ring = Ring { grants: grants.clone(), limit: 0, window: 0 };
                ring.change(quota);
                ring
            })
            .collect();
    }

    /// Who goes later makes way later, a window on: each moment of patience would be lost.
    fn gather(&self, _: u64, due: u64, _: u64, _: u64) -> u64 {
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_no_longer_than_the_quota() {
        let quota = Quota::new(10, std::time::Duration::from_nanos(99)).unwrap();
        let mut rings = Rings::new(&[quota], None);
        let mut granted = 0;
        for now in 0..10_000 {
            for cost in [1, 3, 10] {
                granted += u32::from(rings.take(NonZeroU32::new(cost).unwrap(), now)) * cost;
                assert!(rings.rings[0].grants.len() <= 10);
            }
        }
        assert_eq!(granted, 1_000);
    }
}
