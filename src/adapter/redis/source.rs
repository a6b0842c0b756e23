//! The port through which the limiter takes the permits of the store.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::permits::Permits;
use crate::{error::Refusal, limit::PermitSource, policy::Amounts};

/// The query task and the limiter share the permits. The limiter calls them under its lock.
pub(super) struct Source(pub(super) Arc<Mutex<Permits>>);

impl PermitSource for Source {
    fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool {
        lock(&self.0).take(cost, amounts, now)
    }

    fn settle(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) {
        lock(&self.0).settle(taken_at, charged, actual, now);
    }

    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        lock(&self.0).forecast(start, total, costliest)
    }

    fn available(&self, now: u64) -> u32 {
        lock(&self.0).available(now)
    }

    fn largest(&self) -> u32 {
        lock(&self.0).largest
    }

    fn grace(&self) -> u64 {
        lock(&self.0).grace
    }

    fn unavailable(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
        lock(&self.0).unavailable(cost, now)
    }
}

pub(super) fn lock(permits: &Mutex<Permits>) -> MutexGuard<'_, Permits> {
    // Ignores poisoning, because no code under this lock can panic.
    permits.lock().unwrap_or_else(PoisonError::into_inner)
}
