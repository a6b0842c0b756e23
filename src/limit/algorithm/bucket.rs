//! The arithmetic of a token bucket of one quota. Governor computes it.

use std::{
    cell::Cell,
    hash::{Hash, Hasher},
    num::NonZeroU32,
};

use governor::{clock::Clock, middleware::NoOpMiddleware, nanos::Nanos, state::StateStore};

use crate::policy::{Quota, nanos};

/// Computes the state of a bucket after a grant. The state is the theoretical arrival time of the next permit: the
/// bucket is full if this time lies in the past.
#[derive(Debug)]
pub struct Bucket {
    governor: governor::RateLimiter<Missing, InPlace, Present, NoOpMiddleware<Nanos>>,
    pub(in crate::limit) quota: Quota,
    pub(super) interval: u64,
    /// The time that an empty bucket takes to fill up.
    pub(super) whole: u64,
}

/// The latest arrival time that a change of quotas, or a grant of a paced window, sets. Adding to it does not overflow.
pub(super) const LATEST: u64 = u64::MAX / 4;

/// The nanoseconds until a bucket is full. Governor replaces the value. The caller then converts it to an arrival time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing(Cell<u64>);

impl Hash for Missing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

/// Governor looks up the state of a bucket by a key. This store needs no lookup, because the state itself is the key.
#[derive(Debug)]
struct InPlace;

impl StateStore for InPlace {
    type Key = Missing;

    #[inline]
    fn measure_and_replace<T, F, E>(&self, missing: &Missing, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (outcome, after) = decide(Some(missing.0.get().into()))?;
        missing.0.set(after.into());
        Ok(outcome)
    }
}

/// A clock that always reads zero, because the state counts from the present.
#[derive(Debug, Clone)]
struct Present;

impl Clock for Present {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Bucket {
    /// Creates a bucket. Returns `None` only if the interval or the burst is zero, which no `Quota` has.
    pub(super) fn new(quota: Quota) -> Option<Self> {
        let interval = quota.refill_interval();
        let limits = governor::Quota::with_period(interval)?.allow_burst(NonZeroU32::new(quota.burst())?);
        Some(Self {
            governor: governor::RateLimiter::new(limits, InPlace, Present),
            quota,
            interval: nanos(interval),
            whole: nanos(interval).saturating_mul(u64::from(quota.burst())),
        })
    }

    /// Returns the arrival time after a grant of `cost` permits, or `None` if they are not available.
    #[inline]
    pub(in crate::limit) fn take(&self, arrival: u64, cost: NonZeroU32, now: u64) -> Option<u64> {
        let missing = Missing(Cell::new(arrival.saturating_sub(now)));
        let is_taken = match cost.get() {
            1 => self.governor.check_key(&missing).is_ok(),
            // Governor returns its outer error if the cost exceeds the burst. The queue refuses such a request before
            // it reaches the bucket.
            _ => self.governor.check_key_n(&missing, cost).is_ok_and(|outcome| outcome.is_ok()),
        };
        is_taken.then(|| now.saturating_add(missing.0.get()))
    }

    /// Returns when `total` permits become available, if none is taken before `start`.
    pub(in crate::limit) fn due(&self, arrival: u64, start: u64, total: u64) -> u64 {
        let last = arrival.max(start).saturating_add(self.interval.saturating_mul(total));
        last.saturating_sub(self.whole).max(start)
    }

    /// Returns the earliest arrival time of a bucket with at most `permits` permits.
    pub(in crate::limit) fn arrival_with(&self, permits: u32, now: u64) -> u64 {
        let left = self.interval.saturating_mul(u64::from(permits)).min(self.whole);
        now.saturating_add(self.whole - left)
    }

    pub(super) fn available(&self, arrival: u64, now: u64) -> u64 {
        let spent = arrival.saturating_sub(now).div_ceil(self.interval);
        u64::from(self.quota.burst()).saturating_sub(spent)
    }
}
