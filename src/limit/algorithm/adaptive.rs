//! The adaptive algorithm: a learned rate below the configured quotas.

use std::num::NonZeroU32;

use super::{Algorithm, paced_window::PacedLogs};
use crate::{
    limit::core::supply::Learned,
    policy::{Quota, adaptive::Learner},
};

/// Grants permits at a learned rate, and never exceeds the configured quotas.
#[derive(Debug)]
pub struct LearnedRate {
    learned: Learned,
    ceiling: PacedLogs,
}

impl Algorithm for LearnedRate {
    fn learns() -> bool {
        true
    }

    fn new(quotas: &[Quota]) -> Self {
        Self { learned: Learned::new(quotas), ceiling: PacedLogs::new(quotas) }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let permits = u64::from(cost.get());
        let start = self.learned.begin_slow_start(now);
        let is_free = self.learned.learner.is_free(cost.get(), now)
            && start.is_none_or(|start| start.due(permits) <= now)
            && self.ceiling.take(cost, now);
        if is_free {
            self.learned.spend(permits, now);
        }
        is_free
    }

    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        let learned = self.learned.due(start, total, costliest.into());
        self.ceiling.forecast(start, total, costliest).max(learned)
    }

    fn largest(&self) -> u32 {
        self.ceiling.largest()
    }

    fn available(&self, now: u64) -> u32 {
        let learned = u32::try_from(self.learned.available(now)).unwrap_or(u32::MAX);
        self.ceiling.available(now).min(learned)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.learned.is_whole(now) && self.ceiling.is_whole(now)
    }

    fn leave(&mut self, permits: u32, now: u64) {
        self.ceiling.leave(permits, now);
    }

    fn postpone(&mut self, delay: u64) {
        self.ceiling.postpone(delay);
    }

    fn change(&mut self, quotas: &[Quota], now: u64) {
        self.ceiling.change(quotas, now);
        self.learned.change(quotas);
    }

    fn poll_at(&self, due: u64, now: u64) -> u64 {
        self.learned.learner.probe_ends().filter(|_| due <= now).unwrap_or(due)
    }

    /// Returns 1 ns while a probe is in flight, which marks the forecast as unknown. A waiter is then refused at its
    /// bound.
    fn grace(&self) -> u64 {
        u64::from(self.learned.learner.probe_ends().is_some())
    }

    fn learner(&self) -> Option<&Learner> {
        Some(&self.learned.learner)
    }

    fn learner_mut(&mut self) -> Option<&mut Learner> {
        Some(&mut self.learned.learner)
    }
}
