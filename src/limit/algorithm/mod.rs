//! The algorithms that determine when permits become available. All times are nanoseconds since the queue's origin.

pub(super) mod adaptive;
pub(super) mod bucket;
pub(super) mod paced_window;
pub(super) mod sliding_window;
pub(super) mod token_bucket;

use std::num::NonZeroU32;

use self::bucket::Bucket;
use crate::{
    error::Refusal,
    policy::{Quota, adaptive::Learner},
};

/// Computes when a limiter may grant permits. The queue calls it under its lock.
pub trait Algorithm: Send + 'static {
    /// Returns whether the algorithm has a [`learner`](Self::learner).
    fn learns() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Creates the state. All permits are available.
    fn new(quotas: &[Quota]) -> Self
    where
        Self: Sized;

    /// Returns the arithmetic of a bucket from which requests take permits without the lock. Returns `None` if the
    /// algorithm needs the lock for these quotas. An algorithm that learns always needs it.
    fn lock_free(_quotas: &[Quota]) -> Option<Bucket>
    where
        Self: Sized,
    {
        None
    }

    /// Returns the arrival time of the [lock-free](Self::lock_free) bucket. Returns `None` if the algorithm has no
    /// such bucket, or if its quota was replaced.
    fn arrival(&self) -> Option<u64> {
        None
    }

    /// Sets the arrival time of the lock-free bucket after grants without the lock.
    fn set_arrival(&mut self, _arrival: u64) {}

    /// Takes `cost` permits of every quota, or takes nothing if one quota lacks them. Returns whether it took them.
    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool;

    /// Returns when the last of `total` permits becomes available, if none is taken before `start`. No request costs
    /// more than `costliest`. The result is never too late, but may be too early if requests cost several permits.
    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64;

    /// Returns the largest number of permits that one request can ever take.
    fn largest(&self) -> u32;

    /// Returns the number of permits that are available now.
    fn available(&self, now: u64) -> u32;

    /// Returns whether every quota is fully available.
    fn is_whole(&self, _now: u64) -> bool {
        false
    }

    /// Spends available permits so that at most `permits` of them are left.
    fn leave(&mut self, _permits: u32, _now: u64) {}

    /// Replaces the quotas. Spent permits still count, so the change does not make more permits available at once.
    fn change(&mut self, _quotas: &[Quota], _now: u64) {}

    /// Moves the times of all grants so far forward by `delay`.
    fn postpone(&mut self, _delay: u64) {}

    /// Returns when the first waiter of the queue must wake up: at `due`, or later, so that one wake-up serves several
    /// waiters. The first waiter's `cost` permits are available at `due`, and the next permit at `next`. The result is
    /// at most `until`, and early enough that no permit is lost.
    fn gather(&self, _cost: u64, due: u64, _next: u64, _until: u64) -> u64 {
        due
    }

    /// Returns when a timer must wake the first waiter of the queue, or `u64::MAX` if the algorithm wakes that waiter
    /// itself.
    fn poll_at(&self, due: u64, _now: u64) -> u64 {
        due
    }

    /// Returns how long the algorithm may take until it can make a forecast. Until then, the forecast is that permits
    /// are available now.
    fn grace(&self) -> u64 {
        0
    }

    /// Returns the part that learns the server's limit from each response.
    fn learner(&self) -> Option<&Learner> {
        None
    }

    fn learner_mut(&mut self) -> Option<&mut Learner> {
        None
    }

    /// Returns why the limiter currently grants no request of this cost, or `None` if it may grant one.
    fn unavailable(&self, _cost: NonZeroU32, _now: u64) -> Option<Refusal> {
        None
    }
}
