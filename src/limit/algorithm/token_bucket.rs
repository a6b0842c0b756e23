//! The token bucket algorithm.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    Algorithm,
    bucket::{Bucket, LATEST},
};
use crate::{limit::queue::clock::nanos, policy::Quota};

/// One bucket for each quota.
#[derive(Debug)]
pub struct Buckets {
    buckets: Vec<Arc<Bucket>>,
}

/// 2 ms in nanoseconds, which is twice the delay of a late timer. The first waiter of the queue wakes up at least this
/// long before a bucket is full.
const LATE: u64 = 2_000_000;

impl Algorithm for Buckets {
    fn new(quotas: &[Quota], shared: Option<Arc<Bucket>>) -> Self {
        let buckets = match shared {
            Some(only) => vec![only],
            None => quotas.iter().filter_map(|quota| Bucket::new(*quota, 0)).collect(),
        };
        Self { buckets }
    }

    fn shared(quotas: &[Quota]) -> Option<Arc<Bucket>> {
        match quotas {
            [only] => Bucket::new(*only, 0),
            _ => None,
        }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        // If there are several buckets, permits are taken only under the lock. No other thread takes one between this
        // check and the grant.
        self.forecast(now, cost.get().into(), cost.get()) <= now
            && self.buckets.iter().all(|bucket| bucket.take(cost, now))
    }

    fn forecast(&self, start: u64, total: u64, _costliest: u32) -> u64 {
        self.buckets.iter().map(|bucket| bucket.forecast(start, total)).max().unwrap_or(start)
    }

    fn largest(&self) -> u32 {
        self.buckets.iter().map(|bucket| bucket.quota.burst()).min().unwrap_or(u32::MAX)
    }

    fn available(&self, now: u64) -> u32 {
        self.buckets.iter().map(|bucket| bucket.available(now) as u32).min().unwrap_or(u32::MAX)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.buckets.iter().all(|bucket| bucket.is_full(now))
    }

    fn leave(&mut self, permits: u32, now: u64) {
        for bucket in &self.buckets {
            let left = bucket.interval.saturating_mul(u64::from(permits)).min(bucket.whole);
            bucket.postpone(now.saturating_add(bucket.whole - left));
        }
    }

    fn change(&mut self, quotas: &[Quota], now: u64) {
        if quotas.iter().eq(self.buckets.iter().map(|bucket| &bucket.quota)) {
            return;
        }
        // Closes a bucket and reads its arrival time in one step, so that every earlier grant counts.
        let close = |old: &Arc<Bucket>| (Arc::clone(old), old.close().saturating_sub(now));
        let closed: Vec<_> = self.buckets.iter().map(close).collect();
        let after = |quota: &Quota| {
            let interval = nanos(quota.refill_interval());
            let whole = interval.saturating_mul(u64::from(quota.burst()));
            let missing = closed
                .iter()
                .map(|(old, missing)| carried(*missing, (old.interval, old.whole), (interval, whole)));
            now.saturating_add(missing.max().unwrap_or(0)).min(LATEST)
        };
        self.buckets = quotas.iter().filter_map(|quota| Bucket::new(*quota, after(quota))).collect();
    }

    fn postpone(&mut self, delay: u64) {
        self.buckets.iter().for_each(|bucket| bucket.delay(delay));
    }

    fn gather(&self, cost: u64, due: u64, next: u64, until: u64) -> u64 {
        // The time from when the first waiter's permits are available until the bucket is full.
        let room = |bucket: &Arc<Bucket>| bucket.whole.saturating_sub(bucket.interval.saturating_mul(cost));
        let room = self.buckets.iter().map(room).min().unwrap_or(0);
        let patience = (room.saturating_sub(LATE) / 2).min(until.saturating_sub(due));
        // Sleeps until a permit becomes available, because waking up between two permits gains nothing.
        let gathered = patience.checked_div(next.saturating_sub(due)).unwrap_or(0);
        due.saturating_add(gathered.saturating_mul(next.saturating_sub(due)))
    }
}

/// Returns how long a new bucket takes to fill up, if it replaces an old bucket that would take `missing`. `old` and
/// `new` are each a refill interval and the time that an empty bucket takes to fill up.
pub(super) fn carried(missing: u64, old: (u64, u64), new: (u64, u64)) -> u64 {
    let left = old.1.saturating_sub(missing);
    // A larger burst becomes available gradually. Otherwise one window could contain both bursts.
    let taken = new.1.saturating_sub(scaled(left, new.0, old.0, u128::div_euclid));
    // Also converts fractions of a permit. Otherwise each change of quotas would lose the permit that is being
    // refilled.
    scaled(missing, new.0, old.0, u128::div_ceil).max(taken)
}

/// Returns how long some permits take to refill at `interval`, if they take `time` at the interval `before`.
fn scaled(time: u64, interval: u64, before: u64, divide: fn(u128, u128) -> u128) -> u64 {
    let scaled = divide(u128::from(time) * u128::from(interval), u128::from(before.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
