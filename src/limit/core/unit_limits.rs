//! Applies the quotas of tokens, points and other units.

use std::num::NonZeroU32;

use super::{Core, Feedback, slots::Waiter, units::Units};
use crate::policy::{
    Amounts, Priority, Remaining, Taken, Totals, Unit,
    adaptive::{Acceptance, LearnedUnit, Learner, Observation},
};

/// A quota can have caused a rejection if less than a twentieth of it remains.
const USED_UP_PART: u64 = 20;

impl Feedback {
    /// Returns the units because of which the server rejected the request: quotas of them are used up, and no quota
    /// that counts requests is.
    pub(super) fn rejecting_units(&self, taken: &Taken) -> impl Iterator<Item = Unit> {
        let requests = |quota: &&Remaining| quota.unit() == Unit::Requests;
        let is_rejected = self.acceptance == Acceptance::Throttled
            && self.remaining.iter().filter(requests).all(|quota| quota.left() > 0);
        // Less remains than the request takes. It may take more than its estimate, or may be settled to nothing.
        let is_short = move |quota: &&Remaining| {
            let own = taken.charged.get(quota.unit()).max(taken.granted.get(quota.unit()));
            quota.left() < u64::from(own).max(1)
                || quota.limit().is_some_and(|limit| quota.left() < limit / USED_UP_PART)
        };
        self.others.iter().filter(move |quota| is_rejected && is_short(quota)).map(Remaining::unit)
    }
}

impl Units {
    /// Returns the amount per second of the slowest quota of a unit.
    pub(super) fn ceiling(&self, unit: Unit) -> f64 {
        let own = self.quotas.states.iter().filter(|it| it.quota.unit() == unit);
        own.map(|it| it.quota.sustained()).fold(f64::INFINITY, f64::min)
    }

    /// Returns the amounts of a request, which was granted an estimate, as a store counts them: only those of the units
    /// with a quota. The smallest bucket of a unit limits them, because the store has one amount for all quotas.
    fn stored_amounts(&self, amounts: &Amounts, granted: &Amounts) -> Amounts {
        let buckets = self.quotas.states.iter().filter(|it| it.quota.is_bucket());
        buckets.fold(amounts.limited_by(&self.limits()), |stored, it| {
            let most = u32::try_from(it.charge(amounts, granted)).unwrap_or(u32::MAX);
            stored.with(it.quota.unit(), most.min(stored.get(it.quota.unit())))
        })
    }
}

impl Core {
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

    /// Begins to learn the rates of the units of which a request takes amounts.
    #[inline(never)]
    pub(super) fn learn_units(&mut self, amounts: &Amounts) {
        let mut is_new = false;
        for (unit, _) in Unit::NAMES {
            if amounts.get(unit) > 0 && self.learned_units().all(|known| known.unit() != unit) {
                let units = self.units.get_or_insert_with(Units::empty);
                units.learned.push(LearnedUnit::new(unit, units.ceiling(unit), self.supply.learns_since()));
                is_new = true;
            }
        }
        if is_new {
            self.limit_amounts();
        }
    }

    /// Returns whether the server rejected a request because of a unit that the limiter learns, and of which the request
    /// takes an amount.
    pub(super) fn is_by_unit(&self, feedback: &Feedback, taken: &Taken) -> bool {
        let is_of = |unit| self.learned_units().any(|known| known.unit() == unit && known.is_of(taken));
        feedback.rejecting_units(taken).any(is_of)
    }

    /// Lets the learners of the units learn from a response. Returns whether anything has changed, and the end of a new
    /// pause.
    pub(super) fn observe_units(
        &mut self,
        feedback: &Feedback,
        taken: &Taken,
        (granted_at, sent_at): (u64, u64),
        now: u64,
    ) -> (bool, Option<u64>) {
        let mut outcome = (false, None);
        for learned in self.units.iter_mut().flat_map(|units| &mut units.learned) {
            learned.end(taken, granted_at);
            let is_evidence = learned.is_of(taken);
            let acceptance = match feedback.acceptance {
                Acceptance::Accepted => Acceptance::Accepted,
                _ if is_evidence && feedback.rejecting_units(taken).any(|unit| unit == learned.unit()) => {
                    Acceptance::Throttled
                }
                // The rejection shows nothing about this unit.
                _ => {
                    outcome.1 = outcome.1.max(learned.lose(taken, granted_at, true));
                    continue;
                }
            };
            let observation = Observation {
                acceptance,
                // A request that takes nothing of the unit is no probe.
                granted_at: if is_evidence { granted_at } else { 0 },
                sent_at,
                requested_pause: feedback.pause,
                remaining: &feedback.others,
            };
            let (is_changed, pause) = learned.observe(&observation, now);
            outcome = (outcome.0 | is_changed, outcome.1.max(pause));
        }
        if outcome.0 {
            self.limit_amounts();
        }
        outcome
    }

    /// Returns the lowest limit of each unit.
    pub(super) fn unit_limits(&self) -> Amounts {
        self.units.as_ref().map_or(Amounts::NONE, |units| units.limits())
    }

    /// Returns the amounts of a request as a store counts them.
    pub(super) fn stored_amounts(&self, amounts: &Amounts, granted: &Amounts) -> Amounts {
        self.units.as_ref().map_or(Amounts::NONE, |units| units.stored_amounts(amounts, granted))
    }

    /// Returns whether no amount exceeds the limit of a quota. A larger amount waits only for the limit.
    pub fn fits(&self, amounts: &Amounts) -> bool {
        self.units.as_ref().is_none_or(|units| units.fit(amounts))
    }

    /// Changes the limits of the amounts of all waiters.
    pub(super) fn limit_amounts(&mut self) {
        if self.queue.amounts.is_none() {
            return;
        }
        let (limits, queue) = (self.unit_limits(), &mut *self.queue);
        let Some(amounts) = &mut queue.amounts else { return };
        amounts.begin(limits);
        for rank in 0..Priority::COUNT {
            queue.slots.iter(rank).for_each(|slot| amounts.enter(&slot.waiter.amounts, rank));
        }
    }

    /// Returns when a request gets its amounts behind those of `ahead`, at `due` or later.
    pub(super) fn due_behind(&self, due: u64, ahead: &Totals, amounts: &Amounts, now: u64) -> u64 {
        let start = self.server.opens_at(now);
        self.units.as_ref().map_or(due, |units| units.due(start, ahead, amounts).max(due))
    }

    /// Takes the permits and the limited amounts of a request from the store. Returns when it took them.
    #[inline(never)]
    pub(super) fn take_from_source(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> Option<u64> {
        let amounts = self.stored_amounts(amounts, amounts);
        self.supply.source_mut()?.take(cost, &amounts, now).then_some(now)
    }

    /// Reports the amounts of a request to the store, if there is one.
    fn settle_in_source(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) {
        if !self.is_stored() {
            return;
        }
        let [charged, actual] =
            [&taken.charged, actual].map(|amounts| self.stored_amounts(amounts, &taken.granted));
        let source = self.supply.source_mut();
        source.into_iter().for_each(|source| source.settle(taken_at, &charged, &actual, now));
    }

    /// Replaces the amounts that a request took at `taken_at`. A larger amount delays the next requests. A smaller
    /// amount returns the difference to the quotas.
    pub fn settle(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) {
        self.settle_in_source(taken_at, taken, actual, now);
        let Some(is_more) = self.settle_units(taken_at, taken, actual, now) else { return };
        self.lateness.hold(now);
        if is_more {
            self.overtake(0, now);
        }
        self.advance(now);
    }

    /// Replaces the amounts that a request took. Returns whether it takes more of a unit than before, or `None` without
    /// units.
    fn settle_units(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) -> Option<bool> {
        let units = self.units.as_mut()?;
        let is_more = units.settle(taken_at, taken, actual, now);
        let learned = units.learned.iter_mut().map(|unit| unit.settle(taken_at, taken, actual, now));
        Some(learned.fold(is_more, |any, is_more| any | is_more))
    }

    /// Ends permits that were granted to a waiter at `at`, and returns its amounts, because its request is not sent.
    pub(super) fn waste_queued(&mut self, waiter: &Waiter, at: u64, now: u64) {
        let taken = Taken::of(waiter.amounts);
        self.settle_in_source(at, &taken, &Amounts::NONE, now);
        self.settle_units(at, &taken, &Amounts::NONE, now);
        self.waste(waiter.cost, at, &Taken::unsent(waiter.amounts), now);
        // A waiter that was in flight before stays in flight.
        if !waiter.is_in_flight {
            self.leave_flight(false, now);
        }
    }

    /// Applies the remaining amounts that the server reports, if the limiter obeys them.
    pub(super) fn report_units(&mut self, others: &[Remaining], sent_at: u64, now: u64) {
        let longest = self.server.pause.settings.longest;
        let units = self.units.as_mut().filter(|_| self.obeys_remaining);
        if units.is_some_and(|units| units.report(others, sent_at, longest, now)) {
            self.overtake(0, now);
        }
    }
}
