//! The token bucket algorithm.

use std::num::NonZeroU32;

use super::{
    Algorithm,
    bucket::{Bucket, LATEST},
};
use crate::policy::Quota;

/// One bucket for each quota.
#[derive(Debug)]
pub struct Buckets {
    buckets: Box<[BucketState]>,
    /// Whether [`change`](Algorithm::change) has replaced the quotas.
    is_changed: bool,
}

/// A bucket with its state.
#[derive(Debug)]
struct BucketState {
    bucket: Bucket,
    arrival: u64,
}

/// 2 ms in nanoseconds, which is twice the delay of a late timer. The first waiter of the queue wakes up at least this
/// long before a bucket is full.
const LATE: u64 = 2_000_000;

fn buckets(quotas: &[Quota], arrival: impl Fn(&Bucket) -> u64) -> Box<[BucketState]> {
    let buckets = quotas.iter().filter_map(|quota| Bucket::new(*quota));
    // `collect` would allocate twice, because it does not know the number of buckets.
    let mut states = Vec::with_capacity(quotas.len());
    states.extend(buckets.map(|bucket| BucketState { arrival: arrival(&bucket), bucket }));
    states.into_boxed_slice()
}

impl Algorithm for Buckets {
    fn new(quotas: &[Quota]) -> Self {
        Self { buckets: buckets(quotas, |_| 0), is_changed: false }
    }

    fn lock_free(quotas: &[Quota]) -> Option<Bucket> {
        match quotas {
            [only] => Bucket::new(*only),
            _ => None,
        }
    }

    fn arrival(&self) -> Option<u64> {
        match &self.buckets[..] {
            [only] if !self.is_changed => Some(only.arrival),
            _ => None,
        }
    }

    fn set_arrival(&mut self, arrival: u64) {
        self.buckets.iter_mut().for_each(|state| state.arrival = arrival);
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let is_free = self.forecast(now, cost.get().into(), cost.get()) <= now;
        if is_free {
            for state in &mut self.buckets {
                state.arrival = state.bucket.take(state.arrival, cost, now).unwrap_or(state.arrival);
            }
        }
        is_free
    }

    fn forecast(&self, start: u64, total: u64, _costliest: u32) -> u64 {
        let due = self.buckets.iter().map(|state| state.bucket.due(state.arrival, start, total));
        due.max().unwrap_or(start)
    }

    fn largest(&self) -> u32 {
        self.buckets.iter().map(|state| state.bucket.quota.burst()).min().unwrap_or(u32::MAX)
    }

    fn available(&self, now: u64) -> u32 {
        let available = self.buckets.iter().map(|state| state.bucket.available(state.arrival, now) as u32);
        available.min().unwrap_or(u32::MAX)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.buckets.iter().all(|state| state.arrival <= now)
    }

    fn leave(&mut self, permits: u32, now: u64) {
        for state in &mut self.buckets {
            state.arrival = state.arrival.max(state.bucket.arrival_with(permits, now));
        }
    }

    fn change(&mut self, quotas: &[Quota], now: u64) {
        if quotas.iter().eq(self.buckets.iter().map(|state| &state.bucket.quota)) {
            return;
        }
        let after = |new: &Bucket| {
            let missing = self.buckets.iter().map(|BucketState { bucket: old, arrival }| {
                carried(arrival.saturating_sub(now), (old.interval, old.whole), (new.interval, new.whole))
            });
            now.saturating_add(missing.max().unwrap_or(0)).min(LATEST)
        };
        self.buckets = buckets(quotas, after);
        self.is_changed = true;
    }

    fn postpone(&mut self, delay: u64) {
        for state in &mut self.buckets {
            state.arrival = state.arrival.saturating_add(delay).min(LATEST).max(state.arrival);
        }
    }

    fn gather(&self, cost: u64, due: u64, next: u64, until: u64) -> u64 {
        // The time from when the first waiter's permits are available until the bucket is full.
        let room = |BucketState { bucket, .. }: &BucketState| {
            bucket.whole.saturating_sub(bucket.interval.saturating_mul(cost))
        };
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
