//! Applies the ends of requests, the server's limits and changes of quotas.

use std::num::NonZeroU32;

use super::{
    BegunPause, Core, Grant,
    server::Reporter,
    supply::{Blocks, has_quota},
    units::Units,
};
use crate::{
    limit::snapshot::Learned,
    policy::{
        Quota, Remaining, Taken, Unit,
        adaptive::{Acceptance, Learner, Observation},
    },
};

/// A quota can have caused a rejection if less than a twentieth of it remains.
const USED_UP_PART: u64 = 20;

/// The rate-limit headers of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feedback {
    /// Whether the server's rate limit accepted the request.
    pub acceptance: Acceptance,
    /// Whether the status is a success. An error may come from a part of the server that enforces no limit.
    pub is_success: bool,
    /// The delay that the server requested for all requests, in nanoseconds.
    pub pause: Option<u64>,
    /// The quotas that limit the next requests.
    pub remaining: Vec<Remaining>,
    /// The quotas of tokens, points and other units.
    pub others: Vec<Remaining>,
}

impl Feedback {
    /// Returns whether the server stated when it accepts requests again: by a delay, or by the reset of a quota without
    /// remaining permits.
    fn states_end(&self) -> bool {
        let is_empty = |quota: &Remaining| quota.left() == 0 && !quota.reset_after().is_zero();
        self.pause.is_some() || self.remaining.iter().any(is_empty)
    }

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

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub enum End<'a> {
    /// A response arrived. The request was sent at this time.
    Response(&'a Feedback, u64),
    /// The request was sent, but no response arrived. It may still reach the server.
    Unconfirmed,
    /// A response arrived, but it concerns only other limiters.
    Elsewhere,
    /// The request was not sent.
    Unsent,
}

impl Core {
    /// Records the end of a request. Returns the learned rate if it has changed.
    pub fn finished(&mut self, grant: Grant, end: End<'_>, taken: &Taken, now: u64) -> Option<Learned<u64>> {
        match end {
            End::Response(feedback, sent_at) => self.respond(grant, (feedback, taken), sent_at, now),
            End::Unconfirmed | End::Elsewhere => {
                if matches!(end, End::Unconfirmed) {
                    self.server.unconfirmed.add(grant.cost.get().into(), now);
                }
                self.lose(grant.at, taken, true, now);
                self.release(grant.cost, false);
            }
            End::Unsent => self.waste(grant.cost, grant.at, taken, now),
        }
        self.advance(now);
        // A change is reported with a response.
        let is_response = matches!(end, End::Response(..));
        let is_changed = is_response && self.supply.learner_mut().is_some_and(Learner::take_change);
        if is_changed { self.learned() } else { None }
    }

    /// Returns the pause that began since the last call, unless it is a stated delay up to the longest pause.
    pub fn take_begun_pause(&mut self) -> Option<BegunPause> {
        self.server.pause.begun?;
        self.server.pause.begun.take()
    }

    fn respond(&mut self, grant: Grant, (feedback, taken): (&Feedback, &Taken), sent_at: u64, now: u64) {
        if !feedback.others.is_empty() {
            self.server.report_others(&feedback.others, now);
            self.report_units(&feedback.others, sent_at, now);
        }
        let is_accepted = feedback.acceptance == Acceptance::Accepted;
        let states_end = feedback.states_end();
        if self.server.pause.is_probe(grant.at) && (is_accepted || states_end) {
            self.server.end_long_pause(now);
            self.lateness.hold(now);
            if is_accepted && feedback.is_success {
                self.server.disprove(&feedback.remaining);
            }
        }
        if is_accepted && self.server.pause.awaits_acceptance() {
            self.server.pause.accept(grant.at);
        }
        // Releases the permits first, because the server has already subtracted this request from the remaining permits
        // that it reports.
        self.release(grant.cost, is_accepted);
        self.expire_uncollected(now);
        let uncounted = self.uncounted(now);
        let progress = self.progress();
        let mut is_changed = false;
        // The quota of requests has accepted a request that was rejected because of a unit that the limiter learns.
        let is_by_unit = self.is_by_unit(feedback, taken);
        let acceptance = if is_by_unit { Acceptance::Accepted } else { feedback.acceptance };
        let obeys_remaining = match self.supply.learner_mut() {
            Some(learner) => {
                let observation = Observation {
                    acceptance,
                    granted_at: grant.at,
                    sent_at,
                    requested_pause: feedback.pause,
                    least_pause: self.server.pause.settings.least(),
                    remaining: &feedback.remaining,
                };
                let of_requests = learner.learn(&observation, progress, now);
                let of_units = self.observe_units(feedback, taken, (grant.at, sent_at), now);
                is_changed = of_requests.0 | of_units.0;
                is_changed |= of_requests.1.max(of_units.1).is_some_and(|until| match states_end {
                    true => self.server.state_pause(until, now),
                    false => self.server.pause(until, now),
                });
                if is_changed {
                    self.lateness.hold(now);
                }
                self.obeys_remaining || is_by_unit
            }
            None => {
                let is_throttled = feedback.acceptance == Acceptance::Throttled;
                if is_throttled && !states_end && self.server.pause.settings.throttled() > 0 {
                    let is_longer = self.server.pause.throttle(grant.at, now);
                    is_changed = self.server.slow_start_after_pause(is_longer);
                }
                // The quota already limits the rate, so other reports do not apply.
                self.obeys_remaining || !is_accepted || !self.server.has_quota
            }
        };
        // A rejection because of another unit proves nothing about the requests, which the limiter's quota limits.
        let ignores_requests = self.server.has_quota
            && !self.obeys_remaining
            && feedback.rejecting_units(taken).next().is_some();
        let applies =
            |quota: &&Remaining| obeys_remaining && !(ignores_requests && quota.unit() == Unit::Requests);
        let remaining = feedback.remaining.iter().filter(applies);
        let has_limits = feedback.pause.is_some() || remaining.clone().next().is_some();
        let reporter = Reporter { is_accepted, cost: grant.cost.get().into(), sent_at, in_flight: uncounted };
        if has_limits && self.server.apply(feedback.pause, remaining, reporter, now) || is_changed {
            self.refuse_late(now);
        }
    }

    /// Stops all grants until `until`. Extends a pause, but never shortens it.
    pub fn pause(&mut self, until: u64, now: u64) {
        if self.server.pause(until, now) {
            self.refuse_late(now);
        }
        self.advance(now);
    }

    /// Discards the server limits, and the rate that follows from the server's quotas.
    pub fn resume(&mut self, now: u64) {
        self.server.reset();
        self.units.iter_mut().for_each(|units| units.resume(now));
        self.supply.learner_mut().into_iter().for_each(|learner| learner.resume(now));
        self.slow_down();
        self.lateness.hold(now);
        self.advance(now);
    }

    /// Replaces the quotas. Spent permits still count. No block may be open.
    pub fn set_quotas(&mut self, quotas: &[Quota], now: u64) {
        let was_unlimited = self.supply.quotas.is_empty();
        self.supply.change(quotas, now);
        if was_unlimited && self.granted > 0 {
            // Earlier grants are in no log, so the burst counts as spent.
            self.supply.quotas.leave(0, now);
        }
        Units::change(&mut self.units, quotas, self.supply.quotas.rule, now);
        let is_stored = self.is_stored();
        self.units.iter_mut().for_each(|units| units.is_stored = is_stored);
        self.limit_amounts();
        let delay = self.lateness.change(quotas);
        if is_stored {
            self.lateness.never_catch_up();
        }
        if delay > 0 {
            self.supply.quotas.postpone(delay);
            self.units.iter_mut().for_each(|units| units.quotas.postpone(delay));
        }
        self.blocks = Blocks::new(quotas);
        let has_quota = self.supply.learner().is_some() || has_quota(quotas);
        if has_quota != self.server.has_quota {
            self.server.has_quota = has_quota;
        }
        self.lateness.hold(now);
        self.refuse_late(now);
        self.advance(now);
    }

    /// Ends permits that were granted at `at` and whose request was not sent.
    pub(super) fn waste(&mut self, cost: NonZeroU32, at: u64, taken: &Taken, now: u64) {
        if self.server.pause.is_probe(at) {
            self.server.renew_probe(now);
        }
        self.lose(at, taken, false, now);
        self.release(cost, false);
    }

    /// Ends the probes of a request that was granted at `granted_at` and will get no response.
    fn lose(&mut self, granted_at: u64, taken: &Taken, was_sent: bool, now: u64) {
        let mut lost = self.supply.learner_mut().and_then(|learner| learner.lose(granted_at, was_sent));
        for unit in self.units.iter_mut().flat_map(|units| &mut units.learned) {
            unit.end(taken, granted_at);
            lost = lost.max(unit.lose(taken, granted_at, was_sent));
        }
        if let Some(until) = lost {
            self.lateness.hold(now);
            self.server.pause(until, now);
        }
    }

    fn release(&mut self, cost: NonZeroU32, is_accepted: bool) {
        self.released = self.released.wrapping_add(cost.get().into());
        if !is_accepted {
            self.not_accepted = self.not_accepted.wrapping_add(cost.get().into());
        }
    }

    /// Replaces the quotas, the pauses and the limit of requests in flight. Ignores the other settings. Without a
    /// quota, the limiter begins to learn the rate. Once it learns, it always does, so that it keeps the learned rate.
    #[cfg(feature = "client")]
    pub fn reconfigure(&mut self, quotas: &[Quota], settings: &super::CoreSettings, now: u64) {
        if self.server.pause.settings != settings.pauses {
            self.server.pause.settings = settings.pauses;
        }
        if let (Some(in_flight), Some(max)) = (&mut self.in_flight, settings.max_in_flight) {
            (in_flight.max, in_flight.hold) = (max, settings.hold_after_cancel);
        }
        if !has_quota(quotas) {
            self.supply.learn(now);
        }
        self.set_quotas(quotas, now);
    }

    /// Returns the current settings. The limiter was created with the settings `initial`.
    pub fn settings(&self, initial: super::CoreSettings) -> super::CoreSettings {
        let (max_in_flight, hold_after_cancel) = match &self.in_flight {
            Some(in_flight) => (Some(in_flight.max), in_flight.hold),
            None => (initial.max_in_flight, initial.hold_after_cancel),
        };
        let pauses = self.server.pause.settings;
        super::CoreSettings { pauses, max_in_flight, hold_after_cancel, ..initial }
    }
}
