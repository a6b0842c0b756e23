//! The adaptive algorithm: a learned rate below the configured quotas.

use std::num::NonZeroU32;

use super::{Algorithm, paced_window::PacedLogs};
use crate::{
    limit::core::server::slow_start::SlowStart,
    policy::{
        Quota,
        adaptive::{IDLE, Learner},
    },
};

/// The number of requests that leave at once if no quota is configured and no rate is known.
const FIRST: u64 = 10;

/// A limiter with a learned rate is in use for this time after its last grant, so that a [`Keyed`](crate::limit::Keyed)
/// does not forget the rate: ten minutes in nanoseconds.
const KEPT: u64 = 600_000_000_000;

/// Grants permits at a learned rate, and never exceeds the configured quotas.
#[derive(Debug)]
pub struct LearnedRate {
    learner: Learner,
    ceiling: PacedLogs,
    /// The slow start of a limiter without a quota, until it has learned a rate.
    start: Option<SlowStart>,
    last_grant: u64,
}

impl LearnedRate {
    fn slow_start(&self, now: u64) -> Option<SlowStart> {
        let applies =
            self.learner.is_unlimited() && self.learner.rate.is_none() && !self.learner.is_probing();
        applies.then(|| {
            let reopened_at = self.learner.reopened_at;
            let is_idle = |start: &SlowStart| now.saturating_sub(self.last_grant.max(start.from)) > IDLE;
            match self.start.filter(|start| !is_idle(start)) {
                // After a pause, the first request tests whether the pause was long enough.
                Some(start) if start.from < reopened_at => SlowStart::new(reopened_at, 1),
                Some(start) => start,
                None => SlowStart::new(now, FIRST),
            }
        })
    }
}

/// Returns the requests per second of the slowest quota.
fn pace(quotas: &[Quota]) -> f64 {
    quotas.iter().map(Quota::sustained).fold(f64::INFINITY, f64::min)
}

impl Algorithm for LearnedRate {
    fn learns() -> bool {
        true
    }

    fn new(quotas: &[Quota]) -> Self {
        Self {
            learner: Learner::new(pace(quotas)),
            ceiling: PacedLogs::new(quotas),
            start: None,
            last_grant: 0,
        }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        let permits = u64::from(cost.get());
        let start = self.slow_start(now);
        // Stores the slow start even without a grant. Otherwise a costly request would begin another one each time.
        self.start = start.or(self.start);
        let is_free = self.learner.is_free(cost.get(), now)
            && start.is_none_or(|start| start.due(permits) <= now)
            && self.ceiling.take(cost, now);
        if is_free {
            if let Some(start) = &mut self.start {
                start.spend(permits);
            }
            self.last_grant = now;
        }
        is_free
    }

    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        let slow = self.slow_start(start).map_or(start, |slow| slow.due(total));
        let learned = self.learner.due(start, total, costliest);
        self.ceiling.forecast(start, total, costliest).max(learned).max(slow)
    }

    fn largest(&self) -> u32 {
        self.ceiling.largest()
    }

    fn available(&self, now: u64) -> u32 {
        let start = self.slow_start(now).and_then(|start| start.left(now)).unwrap_or(u64::MAX);
        let learned = self.learner.available(now).min(start);
        self.ceiling.available(now).min(u32::try_from(learned).unwrap_or(u32::MAX))
    }

    fn is_whole(&self, now: u64) -> bool {
        let is_kept = self.learner.rate.is_some() && now.saturating_sub(self.last_grant) <= KEPT;
        !is_kept
            && self.learner.probe_ends().is_none()
            && self.learner.due(now, 1, 1) <= now
            && self.ceiling.is_whole(now)
    }

    fn leave(&mut self, permits: u32, now: u64) {
        self.ceiling.leave(permits, now);
    }

    fn postpone(&mut self, delay: u64) {
        self.ceiling.postpone(delay);
    }

    fn change(&mut self, quotas: &[Quota], now: u64) {
        self.ceiling.change(quotas, now);
        self.learner.set_ceiling(pace(quotas));
    }

    fn poll_at(&self, due: u64, now: u64) -> u64 {
        self.learner.probe_ends().filter(|_| due <= now).unwrap_or(due)
    }

    /// Returns 1 ns while a probe is in flight, which marks the forecast as unknown. A waiter is then refused at its
    /// bound.
    fn grace(&self) -> u64 {
        u64::from(self.learner.probe_ends().is_some())
    }

    fn learner(&self) -> Option<&Learner> {
        Some(&self.learner)
    }

    fn learner_mut(&mut self) -> Option<&mut Learner> {
        Some(&mut self.learner)
    }
}
