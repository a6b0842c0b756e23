//! Grants permits to new requests and to the waiters, in order, and expires permits that are not used in time.

use std::num::NonZeroU32;

use super::{
    Core, Grant, Stage, Status, Ticket, forecast::LONGEST_UNCOLLECTED, queue::Head, waiters::Waiter,
};
use crate::{
    error::{Reason, Refusal},
    policy::{
        Amounts, Totals,
        adaptive::{LearnedUnit, Learner},
    },
};

impl Core {
    /// Grants the permits that have become available to the waiters in order. Refuses the first waiters whose permits
    /// cannot become available in time, and expires permits that were not collected.
    pub fn advance(&mut self, now: u64) {
        self.end_held(now);
        self.expire_uncollected(now);
        self.serve(now, None);
        if self.queue.recheck_at.is_some_and(|at| at <= now) {
            self.refuse_late(now);
            self.serve(now, None);
        }
    }

    /// Serves the waiters in order. `polled` is the waiter that is being polled.
    pub(super) fn serve(&mut self, now: u64, polled: Option<u32>) {
        while let Some(head) = self.head() {
            let is_unpolled = head.waiter.is_late && polled != Some(head.slot);
            if is_unpolled {
                match self.queue.offered_at(&head) {
                    Some(at) if now.saturating_sub(at) > head.waiter.patience.into() => {
                        self.queue.skip(head.slot);
                        continue;
                    }
                    None if self.has_permits(&head, now) => self.queue.settle(head.slot, Stage::Offered(now)),
                    _ => {}
                }
                if self.queue.offered_at(&head).is_some() {
                    break;
                }
            }
            let Waiter { cost, is_in_flight, amounts, .. } = head.waiter;
            let from = self.lateness.start(now);
            // An unpolled waiter may collect its permits too late, and a store may have just refused them.
            if !is_unpolled && self.take((cost, is_in_flight), &amounts, head.reserve, from, now) {
                self.queue.grant(&head, now);
            } else if let Some(refusal) = self.missed(&head, now) {
                self.refuse(head.slot, refusal, now);
            } else {
                self.hold_head(now);
                break;
            }
        }
    }

    /// Records until when the server's limits hold up the first waiter, so that its grant is not backdated further.
    pub(super) fn hold_head(&mut self, now: u64) {
        if let Some(head) = self.head() {
            self.lateness.hold(self.server.earliest(now, head.waiter.cost.get().into()));
        }
    }

    /// Returns whether the permits of the head are available.
    pub(super) fn has_permits(&mut self, head: &Head, now: u64) -> bool {
        let Waiter { cost, is_in_flight, amounts, .. } = head.waiter;
        self.is_ready((cost, is_in_flight), &amounts, now) && (self.is_stored() || self.due(head, now) <= now)
    }

    /// Returns whether these permits are available, except for those that have a forecast.
    pub(super) fn is_ready(
        &mut self,
        (cost, is_in_flight): (NonZeroU32, bool),
        amounts: &Amounts,
        now: u64,
    ) -> bool {
        if self.is_limited_by_server(cost.get().into(), now)
            || self.is_full_for(is_in_flight)
            || !self.supply.has_stored(cost, now)
        {
            return false;
        }
        let progress = self.progress();
        self.supply.progress(progress, cost.get(), now);
        self.advance_units(amounts, now);
        self.is_open(cost, amounts, now)
    }

    /// Returns when [`advance`](Self::advance) must be called next. Returns `None` if no request is
    /// queued.
    pub fn next_wake(&self, now: u64) -> Option<u64> {
        let expiry = self
            .queue
            .uncollected()
            .map(|(_, _, at)| at.saturating_add(self.longest_uncollected()).saturating_add(1));
        let head = self.head().map(|head| {
            if let Some(at) = self.queue.offered_at(&head) {
                return at.saturating_add(u64::from(head.waiter.patience) + 1);
            }
            let due = self.due(&head, now);
            let probe_ends = self.probe_ends(&head.waiter.amounts);
            let wake = match probe_ends.filter(|_| due <= now) {
                // The store has no forecast. It reports its next permits and admissions.
                None if due <= now && self.is_stored() => self.supply.retry_at(now),
                _ if due <= now && self.is_full_for(head.waiter.is_in_flight) => u64::MAX,
                Some(ends) => ends,
                None => self.gather(&head, due, now),
            };
            wake.min(head.waiter.latest.last(self.grace()))
        });
        let recheck = self.queue.recheck_at.filter(|_| self.queue.bounded > 0);
        let held =
            self.in_flight.as_ref().and_then(|in_flight| in_flight.next_held()).filter(|_| head.is_some());
        [expiry, head, recheck, held].into_iter().flatten().min()
    }

    /// Returns whether a limit of the server delays these permits. A limit that has ended begins a slow start.
    #[inline]
    fn is_limited_by_server(&mut self, permits: u64, now: u64) -> bool {
        self.server.any() && self.server.tidy(now) && self.server.earliest(now, permits) > now
    }

    /// Takes permits if they and `reserve` others are available since `from` or later. Returns whether it took them. The
    /// request may already be in flight.
    #[inline]
    pub(super) fn take(
        &mut self,
        (cost, is_in_flight): (NonZeroU32, bool),
        amounts: &Amounts,
        reserve: u64,
        from: u64,
        now: u64,
    ) -> bool {
        let (permits, progress) = (u64::from(cost.get()), self.progress());
        self.supply.progress(progress, cost.get(), now);
        self.advance_units(amounts, now);
        // The server's limits come first, so that no slow start begins while they hold up the grants.
        if self.is_limited_by_server(permits, now) {
            return false;
        }
        if self.is_full_for(is_in_flight) || !self.is_open(cost, amounts, now) {
            return false;
        }
        // Permits behind a probe become available at its end.
        let probe_ends = self.probe_ends(amounts);
        let from = probe_ends.map_or(from, |ends| from.max(ends.min(now)));
        let from = self.units.as_ref().map_or(from, |units| units.due(from, &Totals::NONE, amounts));
        if from > now {
            return false;
        }
        let taken = match self.supply.source() {
            Some(_) => self.take_from_source(cost, amounts, now),
            None => self.supply.take(cost, (reserve, from), progress, now),
        };
        let Some(at) = taken else { return false };
        if self.supply.learner().is_some() && !amounts.is_empty() {
            self.learn_units(amounts);
        }
        self.units.iter_mut().for_each(|units| units.take(at, amounts, now));
        self.lateness.taken_at = at;
        if self.server.any() {
            self.server.spend(permits, now);
        }
        if !is_in_flight {
            self.enter_flight();
        }
        self.granted = self.granted.wrapping_add(permits);
        true
    }

    /// Returns the waiter that is served next.
    pub(super) fn head(&self) -> Option<Head> {
        let head = self.queue.head(self.supply.largest())?;
        let serves_renewed_first = self.queue.renewed > 0 && self.serves_renewed_first();
        let renewed = if serves_renewed_first { self.queue.head_renewed(self.is_full()) } else { None };
        renewed.or(Some(head))
    }

    /// Returns whether renewed requests go first: while no further request may be in flight, or only a probe may leave,
    /// here or in the other limiter of a [`Joint`](crate::limit::Joint). The other waiters wait for the ends of these
    /// requests, and may wait for their connections. A probe that waits for a connection would count as lost.
    pub(super) fn serves_renewed_first(&self) -> bool {
        self.is_full()
            || self.queue.has_joint
            || self.server.pause.is_long()
            || self.learners().any(Learner::is_probing)
    }

    /// Returns the limit if it is reached.
    pub(super) fn full_limit(&self) -> Option<NonZeroU32> {
        self.in_flight.as_ref().filter(|in_flight| in_flight.is_full()).map(|in_flight| in_flight.max)
    }

    /// Returns whether the limit of requests in flight is reached. Forecasts ignore it.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.full_limit().is_some()
    }

    /// Returns whether a request must wait until another one ends. One that is already in flight need not.
    #[inline]
    pub(super) fn is_full_for(&self, is_in_flight: bool) -> bool {
        !is_in_flight && self.is_full()
    }

    /// Counts a request in flight, even beyond the limit.
    pub fn enter_flight(&mut self) {
        self.in_flight.iter_mut().for_each(|in_flight| in_flight.enter());
    }

    /// Ends the cancelled requests that have counted long enough.
    pub fn end_held(&mut self, now: u64) {
        if self.in_flight.as_mut().is_some_and(|in_flight| in_flight.end_held(now)) {
            self.lateness.hold(now);
        }
    }

    #[inline]
    pub(super) fn learned_units(&self) -> std::slice::Iter<'_, LearnedUnit> {
        self.units.as_ref().map_or([].as_slice(), |units| &units.learned).iter()
    }

    /// Returns the learner of requests, and those of other units.
    pub(super) fn learners(&self) -> impl Iterator<Item = &Learner> {
        self.supply.learner().into_iter().chain(self.learned_units().map(|unit| &unit.learner))
    }

    /// Lets the learners of a request's units raise their rates.
    #[inline]
    pub(super) fn advance_units(&mut self, amounts: &Amounts, now: u64) {
        let Some(units) = &mut self.units else { return };
        units.learned.iter_mut().for_each(|unit| unit.advance(amounts, now));
        self.slow_down();
    }

    /// Returns whether no learner delays a request, except for the permits and amounts that have a forecast.
    #[inline]
    pub(super) fn is_open(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool {
        self.supply.is_open(cost.get(), now) && self.learned_units().all(|unit| unit.is_open(amounts, now))
    }

    /// Returns when all probes in flight that delay a request count as lost.
    #[inline]
    pub(super) fn probe_ends(&self, amounts: &Amounts) -> Option<u64> {
        let own = self.supply.learner().and_then(Learner::probe_ends);
        let is_taken = |unit: &&LearnedUnit| amounts.get(unit.unit()) > 0;
        self.learned_units().filter(is_taken).map(|unit| unit.learner.probe_ends()).fold(own, Option::max)
    }

    /// Returns what became of a waiter. Any result but `Waiting` ends the ticket. Permits that were granted too long
    /// ago, or before a pause, have expired: the waiter then returns to its position.
    pub fn status(&mut self, ticket: Ticket, now: u64) -> Status {
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else {
            return Status::Refused(Refusal::new(Reason::MaxWait, None));
        };
        let cost = waiter.cost;
        match *stage {
            Stage::Granted(at) if self.is_expired(at, now) => self.expire(slot, &waiter, at, now),
            Stage::Granted(taken_at) => {
                self.queue.release(slot);
                // The permits of a request that was granted before the limiter began to learn keep that time.
                let at = if taken_at < self.supply.learns_since() { taken_at } else { now };
                return Status::Granted(Grant { at, cost, taken_at });
            }
            Stage::Refused(ref refusal) => {
                let refusal = refusal.clone();
                self.queue.release(slot);
                return Status::Refused(refusal);
            }
            Stage::Waiting if !waiter.is_late => return Status::Waiting,
            Stage::Absent | Stage::Waiting | Stage::Offered(_) | Stage::Free => {}
        }
        if cost.get() > self.supply.largest() {
            // The quotas have changed since the waiter was granted its permits.
            self.queue.release(slot);
            let refusal = self.too_costly(cost);
            return Status::Refused(self.count(refusal));
        }
        self.restore(ticket, now);
        self.serve(now, Some(slot));
        match self.queue.find(ticket) {
            Some((_, Stage::Granted(_) | Stage::Refused(_), _)) => self.status(ticket, now),
            _ => {
                self.queue.withdraw_offer(slot);
                Status::Waiting
            }
        }
    }

    /// Puts an absent waiter back at its position.
    pub(super) fn restore(&mut self, ticket: Ticket, now: u64) {
        if let Some((slot, Stage::Absent, waiter)) = self.queue.find(ticket) {
            self.queue.enter(slot);
            self.watch_bound(waiter.latest);
            self.lateness.hold(now);
            self.overtake(waiter.rank(), now);
        }
    }

    /// Ends a ticket. Permits that were granted but not collected are wasted. Returns `false` if it has already ended.
    pub fn cancel(&mut self, ticket: Ticket, now: u64) -> bool {
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else { return false };
        if let Stage::Granted(at) = *stage {
            self.waste_queued(&waiter, at, now);
        }
        self.queue.release(slot);
        self.lateness.hold(now);
        self.advance(now);
        true
    }

    /// Returns the next waiter that was granted or refused since the last call. It may have been cancelled since.
    pub fn pop_woken(&mut self) -> Option<Ticket> {
        self.queue.pop_woken()
    }

    /// Returns whether permits that were granted at `at` can no longer be used, because they were held too long,
    /// because the limiter is paused, or because the server reported no remaining permits.
    pub fn is_expired(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) > self.lateness.slack
            || self.server.is_shut(at, now)
            || self.learners().any(|learner| learner.is_void(at))
    }

    /// Returns after which time granted permits expire if they are not collected.
    fn longest_uncollected(&self) -> u64 {
        self.lateness.slack.min(LONGEST_UNCOLLECTED)
    }

    /// Returns the earliest time at which the amounts of a permit may have been taken that was collected at this time.
    pub(crate) fn earliest_taken(&self, collected_at: u64) -> u64 {
        let earliest = collected_at.saturating_sub(self.longest_uncollected());
        earliest.max(self.supply.learns_since().min(collected_at))
    }

    /// Expires the permits that were not collected in time.
    pub fn expire_uncollected(&mut self, now: u64) {
        while let Some((slot, waiter, at)) = self.queue.uncollected() {
            if now.saturating_sub(at) <= self.longest_uncollected() {
                break;
            }
            self.expire(slot, &waiter, at, now);
        }
    }

    /// Takes the permits from a waiter that has not collected them in time, and sets it aside.
    fn expire(&mut self, slot: u32, waiter: &Waiter, at: u64, now: u64) {
        self.queue.expire(slot);
        self.waste_queued(waiter, at, now);
    }
}
