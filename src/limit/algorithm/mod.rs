//! How permits become available. All times are nanoseconds since the queue's origin.

pub(super) mod bucket;
pub(super) mod sliding_window;
pub(super) mod token_bucket;

use std::{num::NonZeroU32, sync::Arc};

use self::bucket::Bucket;
use crate::{error::Refusal, policy::Quota};

/// The arithmetic of a limiter. The queue calls it under its lock, except for the [`shared`](Self::shared) bucket.
pub trait Algorithm: Send + 'static {
    /// Creates the state with nothing spent, except what was taken from the `shared` bucket already.
    fn new(quotas: &[Quota], shared: Option<Arc<Bucket>>) -> Self
    where
        Self: Sized;

    /// Creates a bucket that requests may take from without the lock, if the algorithm allows that.
    fn shared(_quotas: &[Quota]) -> Option<Arc<Bucket>>
    where
        Self: Sized,
    {
        None
    }

    /// Takes `cost` permits of every quota, or none of any.
    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool;

    /// Returns when the last of `total` permits becomes available, if none is taken before `start`. The result is never
    /// too late. It is too early if indivisible costs leave a gap.
    fn forecast(&self, start: u64, total: u64) -> u64;

    /// Returns the most permits that one request can ever take.
    fn largest(&self) -> u32;

    /// Returns the permits that are available now.
    fn available(&self, now: u64) -> u32;

    /// Returns whether nothing is spent under any quota.
    fn is_whole(&self, _now: u64) -> bool {
        false
    }

    /// Spends all available permits but `permits`.
    fn leave(&mut self, _permits: u32, _now: u64) {}

    /// Replaces the quotas. Spent permits still count, and no more are available than before.
    fn change(&mut self, _quotas: &[Quota], _now: u64) {}

    /// Returns the time until which the head may sleep, so that it is served together with others: `due`, or up to `until`
    /// if that loses no permit. The head's `cost` permits are available at `due`, and the next permit at `next`.
    fn gather(&self, _cost: u64, due: u64, _next: u64, _until: u64) -> u64 {
        due
    }

    /// Returns when the head's timer polls it again, or `u64::MAX` if the algorithm wakes it instead.
    fn poll_at(&self, due: u64, _now: u64) -> u64 {
        due
    }

    /// Returns how long the first forecast may take. Until then, permits are forecast as available now.
    fn grace(&self) -> u64 {
        0
    }

    /// Returns why the limiter grants no request of this cost at the moment, or `None` if it may grant one.
    fn unavailable(&self, _cost: NonZeroU32, _now: u64) -> Option<Refusal> {
        None
    }
}
