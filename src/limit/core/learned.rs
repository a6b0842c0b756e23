//! The learned rates of requests and of other units.

use super::{Core, Feedback, server::SlowStart, supply::requests, units::Units};
use crate::policy::{
    Amounts, Quota, Taken, Unit,
    adaptive::{Acceptance, IDLE, LearnedUnit, Learner, Observation},
};

/// The number of requests that leave at once if no quota is configured and no rate is known.
const FIRST: u64 = 10;

/// A limiter with a learned rate is in use for this time after its last grant, so that a
/// [`Keyed`](crate::limit::Keyed) does not forget the rate: ten minutes in nanoseconds.
pub(super) const KEPT: u64 = 600_000_000_000;

/// A learned rate.
#[derive(Debug)]
pub(super) struct Learned {
    pub(super) learner: Learner,
    /// When a limiter with quotas began to learn, otherwise zero.
    pub(super) since: u64,
    /// The slow start of a limiter without a quota, until it has learned a rate.
    start: Option<SlowStart>,
    last_grant: u64,
}

/// Returns the requests per second of the slowest quota.
fn pace(quotas: &[Quota]) -> f64 {
    requests(quotas).map(Quota::sustained).fold(f64::INFINITY, f64::min)
}

impl Learned {
    pub(super) fn new(quotas: &[Quota], since: u64) -> Self {
        Self { learner: Learner::new(pace(quotas)), since, start: None, last_grant: 0 }
    }

    pub(super) fn change(&mut self, quotas: &[Quota]) {
        self.learner.set_ceiling(pace(quotas));
    }

    fn slow_start(&self, now: u64) -> Option<SlowStart> {
        let applies =
            self.learner.is_unlimited() && self.learner.rate.is_none() && !self.learner.is_probing();
        applies.then(|| {
            let slow_from = self.learner.slow_from;
            let is_idle = |start: &SlowStart| now.saturating_sub(self.last_grant.max(start.from)) > IDLE;
            match self.start.filter(|start| !is_idle(start)) {
                // After a pause, the first request tests whether the pause was long enough.
                Some(start) if start.from < slow_from => SlowStart::new(slow_from, 1),
                Some(start) => start,
                None => SlowStart::new(now, FIRST),
            }
        })
    }

    /// Stores the slow start that applies now, even without a grant. Otherwise a costly request would begin another one
    /// each time.
    pub(super) fn begin_slow_start(&mut self, now: u64) {
        self.start = self.slow_start(now).or(self.start);
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

impl Core {
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
                least_pause: self.server.pause.settings.least(),
                remaining: &feedback.others,
            };
            let (is_changed, pause) = learned.observe(&observation, now);
            outcome = (outcome.0 | is_changed, outcome.1.max(pause));
        }
        if outcome.0 {
            self.limit_amounts();
        }
        let is_unknown = |unit: &LearnedUnit| unit.learner.rate.is_none() && unit.learner.is_unlimited();
        let is_mixed = self.learned_units().any(is_unknown);
        self.supply.learner_mut().into_iter().for_each(|learner| learner.is_mixed = is_mixed);
        self.slow_down();
        outcome
    }

    /// Begins a slow start of the requests if the rate of a unit has ended, because it limited them, too.
    pub(super) fn slow_down(&mut self) {
        let latest = self.learned_units().map(|unit| unit.learner.slow_from).max();
        if let (Some(learner), Some(latest)) = (self.supply.learner_mut(), latest) {
            learner.slow_from = learner.slow_from.max(latest);
        }
    }
}
