//! Learns the rate of tokens, points or another unit, of which each request takes an amount.

use super::{Learner, Observation, Progress};
use crate::policy::{Amounts, Unit};

/// A request counts as at most the amount that the rate grants in this time, if the server reports no quota.
const LARGEST: f64 = 60.0;

/// The learner of one unit, and the amounts that requests have taken.
#[derive(Debug)]
pub(crate) struct LearnedUnit {
    pub(crate) learner: Learner,
    /// The sum of the amounts that requests took. Settled amounts replace the estimates.
    taken: u64,
    /// The number of requests that took an amount.
    requests: u64,
    last_grant: u64,
    /// When the rate last fell. An amount that was taken before is not returned, because it was taken at a higher rate.
    lowered_at: u64,
}

impl LearnedUnit {
    /// Creates a learner whose rate never exceeds `ceiling`.
    pub(crate) fn new(unit: Unit, ceiling: f64, now: u64) -> Self {
        let learner = Learner { unit, ..Learner::new(ceiling) };
        Self { learner, taken: 0, requests: 0, last_grant: now, lowered_at: now }
    }

    pub(crate) fn unit(&self) -> Unit {
        self.learner.unit
    }

    /// Returns the amount that a request takes. An amount above the server's limit counts as the limit.
    fn own(&self, amounts: &Amounts) -> u32 {
        let own = amounts.get(self.unit());
        let by_rate = |rate: f64| (rate * LARGEST) as u64 + 1;
        let quota = self.learner.quota().map(|(limit, _)| limit);
        let most = quota.or_else(|| self.learner.rate.map(by_rate)).unwrap_or(u64::MAX);
        u32::try_from(most).map_or(own, |most| own.min(most))
    }

    /// Returns the counts, if `in_flight` requests are in flight. Each of them counts as the mean amount.
    fn progress(&self, in_flight: u64) -> Progress {
        let each = self.taken.checked_div(self.requests).unwrap_or(0).max(1);
        let in_flight = in_flight.saturating_mul(each).min(self.taken);
        Progress { accepted: self.taken - in_flight, in_flight, each }
    }

    /// Returns when a request gets its amount behind the amount of `ahead`. A request waits until the earlier ones are
    /// refilled, and not for its own amount, because the server's limit exceeds it.
    pub(crate) fn due(&self, start: u64, ahead: u64, amounts: &Amounts) -> u64 {
        let own = self.own(amounts);
        if own == 0 {
            return start;
        }
        let total = ahead.saturating_add(self.learner.pacer.burst.min(own.into()));
        self.learner.due(start, total, if ahead == 0 { own } else { 0 })
    }

    /// Raises the rate if the run is complete. Called before each grant.
    pub(crate) fn advance(&mut self, amounts: &Amounts, in_flight: u64, now: u64) {
        let own = self.own(amounts);
        if own > 0 {
            self.learner.advance(self.progress(in_flight), own, now);
        }
    }

    /// Returns whether a probe in flight does not hold up a request.
    pub(crate) fn is_open(&self, amounts: &Amounts, now: u64) -> bool {
        self.own(amounts) == 0 || self.probe_ends().is_none_or(|ends| ends <= now)
    }

    /// Returns when a probe in flight counts as lost.
    pub(crate) fn probe_ends(&self) -> Option<u64> {
        self.learner.probe_ends()
    }

    pub(crate) fn take(&mut self, amounts: &Amounts, in_flight: u64, now: u64) {
        let own = self.own(amounts);
        if own > 0 {
            self.learner.grant(own, self.progress(in_flight), now);
            (self.taken, self.requests) = (self.taken.saturating_add(own.into()), self.requests + 1);
            self.last_grant = now;
        }
    }

    /// Replaces the amount that a request took at `taken_at`. Returns whether it takes more than before.
    pub(crate) fn settle(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) -> bool {
        let [before, after] = [charged, actual].map(|amounts| self.own(amounts));
        self.taken = self.taken.saturating_add(after.into()).saturating_sub(before.into());
        self.requests = (self.requests + u64::from(after > 0)).saturating_sub(u64::from(before > 0));
        if after > before {
            self.learner.pacer.grant(after - before, now);
        } else if taken_at > self.lowered_at {
            self.learner.pacer.give_back(before - after);
        }
        after > before
    }

    /// Learns from a response. Returns whether the rate has changed or a probe is due, and the end of a new pause.
    pub(crate) fn observe(
        &mut self,
        response: &Observation<'_>,
        in_flight: u64,
        now: u64,
    ) -> (bool, Option<u64>) {
        let state = |learner: &Learner| (learner.interval(), learner.is_probing());
        let before = state(&self.learner);
        let pause = self.learner.observe(response, self.progress(in_flight), now);
        let after = state(&self.learner);
        if after.0 > before.0 {
            self.lowered_at = now;
        }
        (before != after, pause)
    }

    /// Returns whether the learned rate is lost with the limiter only after it was unused for `kept`.
    pub(crate) fn is_whole(&self, kept: u64, now: u64) -> bool {
        let is_kept = self.learner.rate.is_some() && now.saturating_sub(self.last_grant) <= kept;
        !is_kept && self.probe_ends().is_none()
    }
}
