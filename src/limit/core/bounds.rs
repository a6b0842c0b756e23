//! Forecasts of grants, and refusals of requests that cannot be granted within their bounds.

use std::{num::NonZeroU32, time::Duration};

use super::{
    Ask, Core,
    lateness::{Due, MAX_GATHERED},
    queue::Head,
    queued_amounts,
    slots::Ticket,
};
use crate::{
    error::{Delay, Reason, Refusal},
    limit::source::Demand,
    policy::Totals,
};

/// Waiters that others have overtaken are checked again after this time, and those whose bounds pass within it are
/// refused together: 10 ms in nanoseconds.
pub(super) const RECHECK: u64 = 10_000_000;

/// The wait that a request is expected to have without a forecast: 100 ms in nanoseconds.
const UNKNOWN: u64 = 100_000_000;

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

    /// Returns why the store grants no request of this cost.
    fn unavailable(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
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

    /// Returns the permits that the waiters need.
    pub fn demand(&self, now: u64) -> Demand {
        let (grace, head) = (self.grace(), self.head());
        let amounts = head.map(|head| self.stored_amounts(&head.waiter.amounts, &head.waiter.amounts));
        Demand {
            permits: self.queue.total(),
            head: head.map(|head| head.waiter.cost),
            amounts: amounts.unwrap_or_default(),
            last: self.queue.iter().map(|waiter| waiter.latest.last(grace)).min(),
            uncounted: self.uncounted(now),
        }
    }

    /// Returns the first waiter if its permits are not in the store and the store cannot forecast them. Its caller must
    /// be polled, so that it fetches them.
    pub fn unserved(&self, now: u64) -> Option<Ticket> {
        self.supply.source()?;
        let head = self.head().filter(|head| self.due(head, now) <= now)?;
        self.queue.ticket(head.slot)
    }

    /// Grants the new permits of the store, after it has refused the waiters that are too late and take none.
    pub fn source_changed(&mut self, now: u64) {
        self.supply.set_refused(None);
        let demand = self.demand(now);
        let is_late = |last| self.forecast(now, demand.permits) > last || last <= now;
        let may_refuse = self.unavailable(NonZeroU32::MAX, now).is_some();
        if may_refuse || demand.last.is_some_and(is_late) {
            self.refuse_late(now);
        }
        self.advance(now);
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
        if let Some(unit) = self.units.as_ref().and_then(|units| units.delaying(due)).filter(|_| due > now) {
            return refusal.with_delay(Delay::Unit(unit));
        }
        match self.server.delaying(now, self.queue.total().saturating_add(1)) {
            Some(quota) => refusal.with_delay(Delay::Quota(quota)),
            None => refusal,
        }
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
                    let before = queued_amounts::ahead(total, own.saturating_add(higher), of_rank, taken);
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
}
