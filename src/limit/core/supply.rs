//! Where a limiter's permits come from: configured quotas, a rate that the limiter learns below them, or a store.

use std::{fmt, num::NonZeroU32};

use super::{
    quotas::{Quotas, Rule, requests},
    server::slow_start::SlowStart,
};
use crate::{
    limit::source::PermitSource,
    policy::{
        Quota,
        adaptive::{IDLE, Learner, Progress},
    },
};

/// The number of requests that leave at once if no quota is configured and no rate is known.
const FIRST: u64 = 10;

/// A limiter with a learned rate is in use for this time after its last grant, so that a
/// [`Keyed`](crate::limit::Keyed) does not forget the rate: ten minutes in nanoseconds.
pub(super) const KEPT: u64 = 600_000_000_000;

/// The configured quotas, and the rate of a limiter that learns. A struct of both, because all of their limits apply.
#[derive(Debug)]
pub(super) struct Supply {
    pub(super) quotas: Quotas,
    learned: Option<Box<Learned>>,
    source: Option<Source>,
}

/// A store outside the limiter, which replaces the quotas.
struct Source {
    store: Box<dyn PermitSource>,
    /// The time before which the store counts as empty for waiters that take their permits when they are polled. Zero
    /// unless it has refused such a waiter although it had the permits, because it lacked the amounts.
    retry_at: u64,
}

/// How long the store counts as empty after it has refused a waiter, unless it reports a change: 100 ms in nanoseconds.
const RETRY: u64 = 100_000_000;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// A learned rate.
#[derive(Debug)]
pub(super) struct Learned {
    pub(super) learner: Learner,
    /// When a limiter with quotas began to learn, otherwise zero.
    since: u64,
    /// The slow start of a limiter without a quota, until it has learned a rate.
    start: Option<SlowStart>,
    last_grant: u64,
}

/// Returns the requests per second of the slowest quota.
fn pace(quotas: &[Quota]) -> f64 {
    requests(quotas).map(Quota::sustained).fold(f64::INFINITY, f64::min)
}

impl Learned {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        Self { learner: Learner::new(pace(quotas)), since: 0, start: None, last_grant: 0 }
    }

    pub(super) fn change(&mut self, quotas: &[Quota]) {
        self.learner.set_ceiling(pace(quotas));
    }

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

    /// Returns the slow start that applies now. Stores it even without a grant. Otherwise a costly request would begin
    /// another one each time.
    pub(super) fn begin_slow_start(&mut self, now: u64) -> Option<SlowStart> {
        let start = self.slow_start(now);
        self.start = start.or(self.start);
        start
    }

    /// Spends the permits of a request that leaves now.
    pub(super) fn spend(&mut self, permits: u64, now: u64) {
        if let Some(start) = &mut self.start {
            start.spend(permits);
        }
        self.last_grant = now;
    }

    pub(super) fn due(&self, start: u64, total: u64, costliest: u64) -> u64 {
        let slow = self.slow_start(start).map_or(start, |slow| slow.due(total));
        self.learner.due(start, total, u32::try_from(costliest).unwrap_or(u32::MAX)).max(slow)
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        let start = self.slow_start(now).and_then(|start| start.left(now)).unwrap_or(u64::MAX);
        self.learner.available(now).min(start)
    }

    pub(super) fn is_whole(&self, now: u64) -> bool {
        let is_kept = self.learner.rate.is_some() && now.saturating_sub(self.last_grant) <= KEPT;
        !is_kept && self.learner.probe_ends().is_none() && self.learner.due(now, 1, 1) <= now
    }
}

impl Supply {
    /// Takes all permits from a store.
    pub(super) fn from_source(store: Box<dyn PermitSource>) -> Self {
        Self { source: Some(Source { store, retry_at: 0 }), ..Self::new(&[], Rule::TokenBucket) }
    }

    pub(super) fn new(quotas: &[Quota], rule: Rule) -> Self {
        let learned = (rule == Rule::Learned).then(|| Box::new(Learned::new(quotas)));
        Self { quotas: Quotas::new(quotas, rule), learned, source: None }
    }

    pub(super) fn learner(&self) -> Option<&Learner> {
        self.learned.as_ref().map(|learned| &learned.learner)
    }

    /// Returns when the limiter began to learn.
    pub(super) fn learns_since(&self) -> u64 {
        self.learned.as_ref().map_or(0, |learned| learned.since)
    }

    pub(super) fn learner_mut(&mut self) -> Option<&mut Learner> {
        self.learned.as_mut().map(|learned| &mut learned.learner)
    }

    pub(super) fn source(&self) -> Option<&dyn PermitSource> {
        self.source.as_ref().map(|source| &*source.store)
    }

    pub(super) fn source_mut(&mut self) -> Option<&mut dyn PermitSource> {
        self.source.as_mut().map(|source| &mut *source.store as &mut dyn PermitSource)
    }

    pub(super) fn take_source(&mut self) -> Option<Box<dyn PermitSource>> {
        self.source.take().map(|source| source.store)
    }

    /// Returns whether the store has these permits, and has not just refused them. `true` without a store.
    pub(super) fn has_stored(&self, cost: NonZeroU32, now: u64) -> bool {
        let has = |source: &Source| source.retry_at <= now && source.store.available(now) >= cost.get();
        self.source.as_ref().is_none_or(has)
    }

    /// Returns when the limiter calls a store again that has refused permits. Returns `None` if it may call it now.
    pub(super) fn retry_at(&self, now: u64) -> Option<u64> {
        self.source.as_ref().map(|source| source.retry_at).filter(|at| *at > now)
    }

    /// Records that the store has refused permits, or that it has changed since.
    pub(super) fn set_refused(&mut self, at: Option<u64>) {
        let retry_at = at.map_or(0, |at| at.saturating_add(RETRY));
        self.source.iter_mut().for_each(|source| source.retry_at = retry_at);
    }

    /// Returns when the last of `total` permits is available, if none is taken before `start`. No request costs more
    /// than `costliest`. The result is never too late, but may be too early if requests cost several permits.
    #[inline]
    pub(super) fn due(&self, start: u64, total: u64, costliest: u64) -> u64 {
        if let Some(source) = self.source() {
            return source.forecast(start, total, u32::try_from(costliest).unwrap_or(u32::MAX));
        }
        let due = self.quotas.due(start, total, costliest);
        self.learned.as_ref().map_or(due, |learned| learned.due(start, total, costliest).max(due))
    }

    /// Lets a learner raise its rate.
    #[inline]
    pub(super) fn progress(&mut self, progress: Progress, cost: u32, now: u64) {
        if let Some(learned) = &mut self.learned {
            learned.learner.advance(progress, cost, now);
        }
    }

    /// Returns whether a request of this cost may leave now, except for the permits that [`due`](Self::due) forecasts.
    #[inline]
    pub(super) fn is_open(&mut self, cost: u32, now: u64) -> bool {
        let Some(learned) = &mut self.learned else { return true };
        learned.begin_slow_start(now);
        learned.learner.is_free(cost, now)
    }

    /// Takes permits if they and `reserve` others are available since `from` or later. Returns since when.
    #[inline]
    pub(super) fn take(
        &mut self,
        cost: NonZeroU32,
        (reserve, from): (u64, u64),
        progress: Progress,
        now: u64,
    ) -> Option<u64> {
        let needed = u64::from(cost.get()).saturating_add(reserve);
        let at = self.due(from, needed, needed);
        if at > now {
            return None;
        }
        self.book(cost.get(), at, progress, now);
        Some(at)
    }

    /// Takes permits for requests that leave now, as if they were taken at `at`.
    #[inline]
    pub(super) fn book(&mut self, cost: u32, at: u64, progress: Progress, now: u64) {
        self.quotas.take(at, cost.into());
        if let Some(learned) = &mut self.learned {
            learned.spend(cost.into(), now);
            learned.learner.grant(cost, progress, now);
        }
    }

    /// Returns the largest cost that can ever be granted.
    #[inline]
    pub(super) fn largest(&self) -> u32 {
        self.source().map_or_else(|| self.quotas.largest(), PermitSource::largest)
    }

    /// Returns the largest cost of a single request that is available now.
    pub(super) fn available(&self, now: u64) -> u64 {
        if let Some(source) = self.source() {
            return source.available(now).into();
        }
        let learned = self.learned.as_ref().map_or(u64::MAX, |learned| learned.available(now));
        self.quotas.available(now).min(learned)
    }

    /// Returns how many requests for one permit each may leave now without the limiter's lock. Zero for a learned rate,
    /// because a learner counts each grant, and for a store.
    pub(super) fn singles(&self, now: u64) -> u64 {
        if self.learned.is_some() || self.source.is_some() { 0 } else { self.quotas.singles(now) }
    }

    /// Returns whether every quota is fully available, and no learned rate would be lost with the limiter.
    pub(super) fn is_whole(&self, now: u64) -> bool {
        self.source.is_none()
            && self.quotas.is_whole(now)
            && self.learned.as_ref().is_none_or(|learned| learned.is_whole(now))
    }

    /// Begins to learn the rate, if the limiter does not do so.
    #[cfg(feature = "client")]
    pub(super) fn learn(&mut self, now: u64) {
        self.learned.get_or_insert_with(|| Box::new(Learned { since: now, ..Learned::new(&[]) }));
    }

    pub(super) fn change(&mut self, quotas: &[Quota], now: u64) {
        self.quotas.change(quotas, now);
        self.learned.iter_mut().for_each(|learned| learned.change(quotas));
    }
}
