//! Forecasts of grants, the refusals of requests that cannot be granted within their bounds, and late timers: how far a
//! grant is backdated, and how long the driver gathers several grants.

use std::{num::NonZeroU32, time::Duration};

use super::{Ask, Core, Latest, Ticket, amounts, queue::Head};
use crate::{
    error::{Delay, Reason, Refusal},
    policy::{Amounts, Quota, Totals, Unit, nanos},
};

/// Waiters that others have overtaken are checked again after this time, and those whose bounds pass within it are
/// refused together: 10 ms in nanoseconds.
const RECHECK: u64 = 10_000_000;

/// The wait that a request is expected to have without a forecast: 100 ms in nanoseconds.
const UNKNOWN: u64 = 100_000_000;

/// The longest time that the first waiter waits beyond its due time, so that several waiters are served together: four
/// timer ticks, 4 ms in nanoseconds. A tick costs more processor time than a permit.
const GATHER: u64 = 4_000_000;

/// The maximum number of permits that are gathered. It is limited, because as many waiters' bounds are checked.
const MAX_GATHERED: u64 = 64;

/// The delay of a late timer: 1 ms in nanoseconds.
const TICK: u64 = 1_000_000;

/// The additional wait is at most the last waiter's wait divided by this number.
const PART: u64 = 16;

/// Uncollected permits expire after at most this time, even without a quota: 1 s in nanoseconds.
pub(super) const LONGEST_UNCOLLECTED: u64 = 1_000_000_000;

impl Core {
    /// Returns when the last of `total` permits can be granted. In a long pause, only the probe that may leave now is
    /// expected before the stated end.
    pub(super) fn forecast(&self, now: u64, total: u64) -> u64 {
        let pause = &self.server.pause;
        let is_first = || self.head().is_none_or(|head| total <= head.waiter.cost.get().into());
        let start = match pause.end(now) {
            Some(end) if pause.is_long() && (pause.is_on(now) || !is_first()) => end,
            _ => now,
        };
        self.server.forecast(|start, total| self.supply.due(start, total, self.queue.costliest), start, total)
    }

    /// Returns when the permits of the head are available.
    pub(super) fn due(&self, head: &Head, now: u64) -> u64 {
        let cost = u64::from(head.waiter.cost.get());
        // The server's limits apply only to the permits that the head takes.
        let needed = cost.saturating_add(head.reserve);
        let by_server = self.server.forecast(|start, total| self.supply.due(start, total, cost), now, cost);
        let due = by_server.max(self.supply.due(now, needed, needed));
        self.due_behind(due, &Totals::NONE, &head.waiter.amounts, now)
    }

    /// Returns when a request gets its amounts behind those of `ahead`, at `due` or later.
    pub(super) fn due_behind(&self, due: u64, ahead: &Totals, amounts: &Amounts, now: u64) -> u64 {
        let start = self.server.opens_at(now);
        self.units.as_ref().map_or(due, |units| units.due(start, ahead, amounts).max(due))
    }

    /// Returns why the store grants no request of this cost.
    pub(super) fn unavailable(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
        self.supply.source()?.unavailable(cost, now)
    }

    /// Returns why a new request can never be granted.
    #[inline]
    pub(super) fn rejects(&self, ask: &Ask<'_>, now: u64) -> Option<Refusal> {
        if ask.latest.deadline < now {
            Some(self.refusal(Reason::Deadline, now, now))
        } else if ask.cost.get() > self.supply.largest() {
            Some(self.too_costly(ask.cost))
        } else {
            self.unavailable(ask.cost, now)
        }
    }

    /// Returns when a new request would be granted, and when it would be if no other request waited. Without a
    /// forecast, returns times that are at least 100 ms away, or at least 100 ms for each round of requests in flight
    /// before this one. Returns `None` if the request would be refused.
    pub fn expected(&self, ask: &Ask<'_>, now: u64) -> Option<[u64; 2]> {
        if self.rejects(ask, now).is_some() {
            return None;
        }
        let due = self.due_of_new(ask, now);
        let alone = self.forecast(now, ask.cost.get().into());
        let alone = self.due_behind(alone, &Totals::NONE, ask.amounts, now).min(due);
        let is_unknown = self.is_full_for(ask.is_in_flight) || due <= now && self.grace() > 0;
        let waiters = self.queue.len(ask.priority.rank());
        if (due > now || is_unknown) && waiters >= ask.max_queue {
            return None;
        }
        if !is_unknown {
            return Some([due, alone]);
        }
        // The waiters ahead leave when the requests in flight end, as many at a time as may be in flight.
        let rounds =
            self.in_flight.as_ref().map_or(0, |in_flight| waiters as u64 / u64::from(in_flight.max.get()));
        let after = |rounds: u64| now.saturating_add(UNKNOWN.saturating_mul(rounds));
        Some([due.max(after(rounds + 1)), alone.max(after(1))])
    }

    /// Returns the first waiter if its permits are not in the store and the store cannot forecast them. Its caller must
    /// be polled, so that it fetches them.
    pub fn unserved(&self, now: u64) -> Option<Ticket> {
        self.supply.source()?;
        let head = self.head().filter(|head| self.due(head, now) <= now)?;
        self.queue.ticket(head.slot)
    }

    /// Returns the bound that a new request misses, whose permits are expected at `due`. Without a forecast, a request
    /// that must not wait misses its longest wait at once, unless a store may admit it.
    pub(super) fn missed_by_new(&self, ask: &Ask<'_>, due: u64, now: u64) -> Option<Reason> {
        let may_be_admitted = self.in_flight.as_ref().is_some_and(|in_flight| in_flight.admitted.is_some());
        if !may_be_admitted && self.is_full_for(ask.is_in_flight) && ask.latest.max_wait <= now {
            return Some(Reason::MaxWait);
        }
        ask.latest.missed_by(due, now, self.grace())
    }

    pub(super) fn missed(&self, head: &Head, now: u64) -> Option<Refusal> {
        if !head.waiter.latest.is_bounded() {
            return None;
        }
        let due = self.due(head, now);
        let reason = head.waiter.latest.missed_by(due, now, self.grace())?;
        Some(self.refusal(reason, due, now))
    }

    /// Returns when the driver must wake for the head, whose permits are available at `due`: then, or a little later,
    /// so that one wake-up serves several waiters. It is never so late that one of them misses its bounds.
    pub(super) fn gather(&self, head: &Head, due: u64, now: u64) -> u64 {
        let needed = u64::from(head.waiter.cost.get()).saturating_add(head.reserve);
        let wanted = self.queue.total();
        let has_own_time = self.supply.learner().is_some() || self.is_stored();
        let is_exact = self.server.any() || has_own_time || self.units.is_some() || self.queue.is_alone(head);
        if wanted <= needed || is_exact {
            return due;
        }
        let first = self.queue.iter().take(MAX_GATHERED as usize).map(|waiter| waiter.latest.last(0));
        let bound = if self.queue.bounded > 0 { first.min().unwrap_or(u64::MAX) } else { u64::MAX };
        let (next, last) = (self.forecast(now, needed + 1), self.forecast(now, wanted));
        let room = self.supply.quotas.room(needed);
        self.lateness.gather(&Due { first: due, next, last, bound }, room, now)
    }

    /// Schedules a check of the waiters that others have overtaken, or that a returning waiter delays.
    pub(super) fn overtake(&mut self, rank: usize, now: u64) {
        if self.queue.bounded > 0 && self.queue.wanted.iter().skip(rank).any(|wanted| *wanted > 0) {
            self.recheck_by(now.saturating_add(RECHECK));
        }
    }

    pub(super) fn too_costly(&self, cost: NonZeroU32) -> Refusal {
        let reason = Reason::TooCostly { largest: self.supply.largest() };
        Refusal::new(reason, None).with_delay(Delay::Cost(cost))
    }

    /// Refuses a request whose permits would be available at `due`. The wait of the queue includes that of the server's
    /// quota that delays it.
    pub(super) fn refusal(&self, reason: Reason, due: u64, now: u64) -> Refusal {
        // The end of a request in flight cannot be forecast.
        if let Some(max) = self.full_limit().filter(|_| due <= now) {
            return Refusal::new(reason, None).with_delay(Delay::InFlight(max));
        }
        let refusal = Refusal::new(reason, Duration::from_nanos(due.saturating_sub(now)));
        if let Some(unit) = self.delaying_unit(due, now) {
            return refusal.with_delay(Delay::Unit(unit));
        }
        match self.server.delaying(now, self.queue.total().saturating_add(1)) {
            Some(quota) => refusal.with_delay(Delay::Quota(quota)),
            None => refusal,
        }
    }

    /// Returns the unit that delays the request with the last forecast until `due`.
    pub(super) fn delaying_unit(&self, due: u64, now: u64) -> Option<Unit> {
        self.units.as_ref()?.delaying(due).filter(|_| due > now)
    }

    /// Refuses a new request, and counts it.
    pub(super) fn count_refused(&mut self, reason: Reason, due: u64, now: u64) -> Refusal {
        let refusal = self.refusal(reason, due, now);
        self.count(refusal)
    }

    pub(super) fn count(&mut self, refusal: Refusal) -> Refusal {
        self.refused += 1;
        refusal
    }

    /// Refuses a waiter. The grant of the next one is not backdated beyond the present.
    pub(super) fn refuse(&mut self, slot: u32, refusal: Refusal, now: u64) {
        let refusal = self.count(refusal);
        self.queue.refuse(slot, refusal);
        self.lateness.hold(now);
    }

    /// Refuses the waiters whose permits cannot become available in time, or at all.
    pub(super) fn refuse_late(&mut self, now: u64) {
        self.queue.recheck_at = None;
        let (largest, grace) = (self.supply.largest(), self.grace());
        let mut wanted = self.queue.wanted;
        let mut taken = Totals::NONE;
        for rank in 0..wanted.len() {
            let (higher, mut of_rank) = (wanted.iter().take(rank).sum::<u64>(), Totals::NONE);
            let (mut ahead, mut next) = (0, self.queue.slots.first(rank).map(|(slot, _)| slot));
            while let Some((slot, found)) = next.and_then(|slot| Some((slot, self.queue.slots.get(slot)?))) {
                let waiter = found.waiter;
                next = self.queue.slots.next(found).map(|(slot, _)| slot);
                let own = u64::from(waiter.cost.get()).saturating_add(ahead);
                let refusal = if waiter.cost.get() > largest {
                    Some(self.too_costly(waiter.cost))
                } else if let Some(refusal) = self.unavailable(waiter.cost, now) {
                    Some(refusal)
                } else if waiter.latest.is_bounded() {
                    let total = self.queue.shares.total(rank, own, &wanted, 0);
                    let before = amounts::ahead(total, own.saturating_add(higher), of_rank, taken);
                    let due = self.forecast(now, total);
                    let due = self.due_behind(due, &before, &waiter.amounts, now);
                    let reason = waiter.latest.missed_by(due, now, grace);
                    reason.map(|reason| self.refusal(reason, due, now))
                } else {
                    None
                };
                match refusal {
                    Some(refusal) => self.refuse(slot, refusal, now),
                    None => {
                        ahead = own;
                        of_rank.add(&self.queue.counted(&waiter.amounts));
                    }
                }
            }
            taken = taken.plus(&of_rank);
            wanted[rank] = ahead;
        }
        self.watch_bounds(now);
    }

    /// Returns how long the core may take until it can make a forecast. 1 ns while a probe is in flight or no further
    /// request may be in flight, which marks the forecast as unknown. A waiter is then refused at its bound.
    pub(super) fn grace(&self) -> u64 {
        let is_unknown = u64::from(self.is_full());
        if let Some(source) = self.supply.source() {
            return source.grace().max(is_unknown);
        }
        is_unknown | u64::from(self.learners().any(|learner| learner.probe_ends().is_some()))
    }

    /// Returns whether the permits come from a store, which may refuse them although it has them.
    pub fn is_stored(&self) -> bool {
        self.supply.source().is_some()
    }

    /// Schedules the refusal of a waiter at its bound, because no forecast refuses it earlier.
    pub(super) fn watch_bound(&mut self, latest: Latest) {
        if self.watches_bounds() && latest.is_bounded() {
            self.recheck_by(latest.last(self.grace()));
        }
    }

    /// Returns whether waiters are refused at their bounds even if nothing changes, because a forecast may be unknown or
    /// too early.
    fn watches_bounds(&self) -> bool {
        self.in_flight.is_some()
            || self.units.is_some()
            || self.queue.has_joint
            || self.supply.learner().is_some()
            || self.queue.costliest > 1
    }

    /// Checks the bounds of all waiters at this time or earlier.
    fn recheck_by(&mut self, bound: u64) {
        self.queue.recheck_at = Some(self.queue.recheck_at.map_or(bound, |known| known.min(bound)));
    }

    /// Schedules the refusal of the next waiter, after those whose bounds have passed were refused.
    fn watch_bounds(&mut self, now: u64) {
        if self.watches_bounds() && self.queue.bounded > 0 {
            let grace = self.grace();
            let next = self.queue.iter().map(|waiter| waiter.latest.last(grace)).min();
            self.recheck_by(next.unwrap_or(u64::MAX).max(now.saturating_add(RECHECK)));
        }
    }
}

/// How far grants are backdated after late timers, and how long granted permits stay valid.
#[derive(Debug)]
pub(super) struct Lateness {
    /// The longest time by which a grant is backdated.
    catch_up: u64,
    /// How long a granted permit stays valid.
    pub(super) slack: u64,
    /// The time to which the last grant was backdated. The times of grants never decrease.
    pub(super) taken_at: u64,
    /// The first waiter could not be served before this time, because of a server limit or of another waiter.
    held_until: u64,
}

/// When the permits of the first waiters are due.
struct Due {
    /// The permits of the first waiter.
    first: u64,
    /// The permits of the first waiter and one more.
    next: u64,
    /// The permits of all waiters.
    last: u64,
    /// The earliest bound of the first waiters.
    bound: u64,
}

/// Returns the longest time by which a grant is backdated: a quarter of the margin. A grant after a late timer is
/// backdated to the time at which its permits became available, so that the delay does not lower the rate.
fn catch_up(quotas: &[Quota]) -> u64 {
    quotas.iter().map(|quota| nanos(quota.margin()) / 4).min().unwrap_or(0)
}

/// Returns how long a granted permit stays valid: a quarter of the margin. This limit applies to two delays: from the
/// grant until the waiter's task is polled, and from then until the inner service is ready. The third quarter of the
/// margin covers the network, and the fourth covers late timers.
///
/// Without a margin, a permit stays valid for 1/32 of the window, at most 50 ms. Zero would be too short: a task is
/// always polled a little late, so every permit of a queued request would expire. Without a quota, only uncollected
/// permits expire, after 1 s.
fn slack(quotas: &[Quota]) -> u64 {
    const LARGEST_WITHOUT_MARGIN: u64 = 100_000_000;
    let slack = |quota: &Quota| match nanos(quota.margin()) {
        0 => LARGEST_WITHOUT_MARGIN.min(nanos(quota.window()) / 16) / 2,
        margin => margin / 4,
    };
    quotas.iter().map(slack).min().unwrap_or(u64::MAX)
}

impl Lateness {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        Self { catch_up: catch_up(quotas), slack: slack(quotas), taken_at: 0, held_until: 0 }
    }

    pub(super) fn never_catch_up(&mut self) {
        self.catch_up = 0;
    }

    /// Returns the earliest time to which a grant to a waiter is backdated.
    pub(super) fn start(&self, now: u64) -> u64 {
        now.saturating_sub(self.catch_up).max(self.taken_at).max(self.held_until).min(now)
    }

    /// Records that the first waiter cannot be served before `until`, so that its grant is not backdated further.
    pub(super) fn hold(&mut self, until: u64) {
        self.held_until = until;
    }

    /// Replaces the quotas. Returns how far the times of earlier grants move forward, because a smaller margin allows
    /// less backdating.
    pub(super) fn change(&mut self, quotas: &[Quota]) -> u64 {
        let delay = self.catch_up.saturating_sub(catch_up(quotas));
        *self = Self { taken_at: self.taken_at.saturating_add(delay), ..Self::new(quotas) };
        delay
    }

    /// Returns when the driver serves the first waiter of a queue: when its permits are due, or later, so that one
    /// wake-up serves several waiters. No rate is lost, because grants are backdated by four times this delay, or
    /// because a bucket has `room` until it is full.
    fn gather(&self, due: &Due, room: u64, now: u64) -> u64 {
        let step = due.next.saturating_sub(due.first);
        let longest = GATHER
            .min(due.last.saturating_sub(now) / PART)
            .min(step.saturating_mul(MAX_GATHERED))
            .min(due.bound.saturating_sub(TICK).saturating_sub(due.first));
        let patience = room.max(self.catch_up / 4).min(longest);
        // Waits until a permit becomes available, because waking up between two permits gains nothing.
        due.first.saturating_add(patience.checked_div(step).unwrap_or(0).saturating_mul(step))
    }
}
