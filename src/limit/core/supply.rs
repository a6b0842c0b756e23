//! Where a limiter's permits come from: configured quotas, a rate that the limiter learns below them, or a store.

use std::num::NonZeroU32;

use super::{
    Core,
    learned::Learned,
    rules::{QuotaState, Rule},
    store::{PermitSource, Source},
};
use crate::policy::{
    Quota,
    adaptive::{Learner, Progress},
    nanos,
};

/// The configured quotas, and the rate of a limiter that learns. A struct of both, because all of their limits apply.
#[derive(Debug)]
pub(super) struct Supply {
    pub(super) quotas: Quotas,
    learned: Option<Box<Learned>>,
    pub(super) source: Option<Source>,
}

impl Supply {
    pub(super) fn new(quotas: &[Quota], rule: Rule) -> Self {
        let learned = (rule == Rule::Learned).then(|| Box::new(Learned::new(quotas, 0)));
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
    fn book(&mut self, cost: u32, at: u64, progress: Progress, now: u64) {
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
        self.learned.get_or_insert_with(|| Box::new(Learned::new(&[], now)));
    }

    pub(super) fn change(&mut self, quotas: &[Quota], now: u64) {
        self.quotas.change(quotas, now);
        self.learned.iter_mut().for_each(|learned| learned.change(quotas));
    }
}

/// 2 ms in nanoseconds, which is twice the delay of a late timer. Waiters are served at least this long before a bucket
/// is full.
const LATE: u64 = 2_000_000;

/// The quotas of a limiter that count requests, or those that count other units. A request takes its permits from each
/// quota.
#[derive(Debug)]
pub struct Quotas {
    pub(super) rule: Rule,
    pub(super) states: Box<[QuotaState]>,
}

impl Quotas {
    pub fn new(quotas: &[Quota], rule: Rule) -> Self {
        Self::of(requests(quotas), rule)
    }

    /// Creates quotas that count requests, or quotas that count other units.
    pub(super) fn of<'a>(quotas: impl Iterator<Item = &'a Quota>, rule: Rule) -> Self {
        Self { rule, states: quotas.map(|quota| QuotaState::new(*quota, rule)).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Returns when the last of `total` permits is available, if none is taken before `start`. No request costs more
    /// than `costliest`. The result is never too late, but may be too early if requests cost several permits.
    pub fn due(&self, start: u64, total: u64, costliest: u64) -> u64 {
        self.states.iter().map(|state| state.due(start, total, costliest)).max().unwrap_or(start)
    }

    /// Takes permits that are available at `at`.
    pub fn take(&mut self, at: u64, cost: u64) {
        self.states.iter_mut().for_each(|state| state.take(at, cost, (cost, at)));
    }

    /// Returns the largest cost that the quotas can ever grant.
    pub fn largest(&self) -> u32 {
        self.states.iter().map(QuotaState::largest).min().unwrap_or(u32::MAX)
    }

    /// Returns the largest cost of a single request that is available now.
    pub fn available(&self, now: u64) -> u64 {
        self.states.iter().map(|state| state.available(now)).min().unwrap_or(u64::MAX)
    }

    /// Returns how many requests for one permit each are available now.
    pub(super) fn singles(&self, now: u64) -> u64 {
        self.states.iter().map(|state| state.singles(now)).min().unwrap_or(u64::MAX)
    }

    /// Returns whether every quota is fully available.
    pub(super) fn is_whole(&self, now: u64) -> bool {
        self.states.iter().all(|state| state.is_whole(now))
    }

    /// Returns how long grants may be late without a bucket becoming full, if the next one takes `cost` permits. Zero
    /// with a log, because a later grant would count for longer.
    pub(super) fn room(&self, cost: u64) -> u64 {
        let room = |state: &QuotaState| match (&state.pace, &state.log) {
            (Some(pace), None) => {
                pace.whole.saturating_sub(pace.interval.saturating_mul(cost)).saturating_sub(LATE) / 2
            }
            _ => 0,
        };
        self.states.iter().map(room).min().unwrap_or(0)
    }

    /// Spends available permits so that at most `permits` of them are left.
    pub fn leave(&mut self, permits: u32, now: u64) {
        for state in &mut self.states {
            if let Some(pace) = &mut state.pace {
                pace.leave(permits, now);
            } else if let Some(log) = &mut state.log {
                log.add(now, log.available(now).saturating_sub(permits.into()));
            }
        }
    }

    /// Moves the times of all grants so far forward by `delay`.
    pub(super) fn postpone(&mut self, delay: u64) {
        for state in &mut self.states {
            state.pace.iter_mut().for_each(|pace| pace.postpone(delay));
            state.log.iter_mut().for_each(|log| log.postpone(delay));
        }
    }

    /// Replaces the quotas. Spent permits still count, so the change does not make more permits available immediately.
    pub(super) fn change(&mut self, quotas: &[Quota], now: u64) {
        if requests(quotas).eq(self.states.iter().map(|state| &state.quota)) {
            return;
        }
        let old = std::mem::take(&mut self.states);
        let paces: Vec<_> = old.iter().filter_map(|state| state.pace.as_ref()).collect();
        // The log of each quota records every grant, so each new quota starts with a copy of the longest log.
        let longest = old.iter().filter_map(|state| state.log.as_ref()).max_by_key(|log| log.len());
        let state = |quota: &Quota| {
            let mut state = QuotaState::new(*quota, self.rule);
            match (&mut state.log, longest) {
                (Some(log), Some(longest)) => *log = longest.clone().under(quota),
                (Some(log), None) if !old.is_empty() => log.replace(&paces, now),
                _ => {}
            }
            let log = longest.filter(|_| quota.is_bucket());
            state.pace.iter_mut().for_each(|pace| pace.replace(&paces, log, now));
            state.limit_wait(now);
            state
        };
        self.states = requests(quotas).map(state).collect();
    }
}

/// Returns whether a quota counts requests.
pub(crate) fn has_quota(quotas: &[Quota]) -> bool {
    requests(quotas).next().is_some()
}

/// Returns the quotas that count requests.
pub(super) fn requests(quotas: &[Quota]) -> impl Iterator<Item = &Quota> {
    quotas.iter().filter(|quota| quota.counts_requests())
}

/// Opening and closing a smaller block takes longer than locking for each of its permits.
pub const SMALLEST: u64 = 6;

/// The largest block, whose permits fit into 16 bits of a word.
pub const LARGEST: u64 = (1 << 15) - 1;

/// A block lasts for this part of the window and its margin. Late bookings then lower the rate by at most 0.25 %.
const PARTS: u64 = 256;

/// Permits that callers may take until `end`, each for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub permits: u32,
    pub end: u64,
}

/// Blocks of permits that callers take without the limiter's lock.
///
/// A block holds permits that are available when it opens. They are booked when it closes, or at its end if that is
/// earlier. This is later than the callers took them, which is safe for every window.
#[derive(Debug)]
pub(super) struct Blocks {
    /// How long a block lasts, in nanoseconds. Zero without a quota, so that no block opens.
    length: u64,
    /// The time of the last attempt to open a block.
    asked_at: u64,
    open: Option<Block>,
}

impl Blocks {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        let length = |quota: &Quota| nanos(quota.window().saturating_add(quota.margin())) / PARTS;
        Self { length: quotas.iter().map(length).min().unwrap_or(0), asked_at: 0, open: None }
    }

    /// Opens a block with at most half of the free permits. Half of them remain, because a block is booked late: a
    /// caller below the rate would otherwise find no permits.
    ///
    /// Opens a block only if the last attempt was at most a quarter of a block ago. A limiter in rare use would
    /// otherwise only open and close blocks.
    pub(super) fn open(&mut self, free: impl FnOnce() -> u64, now: u64) -> Option<Block> {
        let since = now.saturating_sub(self.asked_at);
        self.asked_at = now;
        if since >= self.length / 4 {
            return None;
        }
        let permits = u32::try_from((free() / 2).min(LARGEST)).ok()?;
        let block = Block { permits, end: now.saturating_add(self.length) };
        self.open = (u64::from(permits) >= SMALLEST).then_some(block);
        self.open
    }

    /// Closes the block, of which `left` permits are left. Returns how many to book, and the time of the booking.
    pub(super) fn close(&mut self, left: u32, at: u64) -> Option<(u32, u64)> {
        let block = self.open.take()?;
        Some((block.permits.saturating_sub(left), at.min(block.end))).filter(|(used, _)| *used > 0)
    }
}

impl Core {
    /// Opens a block of permits that callers may take without the lock. Returns `None` if a request waits, if a server
    /// limit applies, or if a block would be too small.
    pub fn open_block(&mut self, now: u64) -> Option<Block> {
        if self.in_flight.is_some()
            || self.units.is_some()
            || !self.queue.is_empty()
            || self.server.any() && self.server.tidy(now)
        {
            return None;
        }
        self.blocks.open(|| self.supply.singles(now), now)
    }

    /// Closes the block, of which `left` permits are left, and books the others. `at` is read after no caller can take
    /// more permits.
    pub fn close_block(&mut self, left: u32, at: u64) {
        if let Some((used, at)) = self.blocks.close(left, at) {
            let progress = self.progress();
            self.supply.book(used, at, progress, at);
            self.lateness.taken_at = at.max(self.lateness.taken_at);
            self.granted = self.granted.wrapping_add(used.into());
        }
    }
}
