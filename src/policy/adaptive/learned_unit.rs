//! Learns the rate of tokens, points or another unit, of which each request takes an amount.

use super::{Learner, Observation, Progress};
use crate::policy::{Amounts, Taken, Unit};

/// A request counts as at most the amount that the rate grants in this time, if the server reports no quota.
const LARGEST: f64 = 60.0;

/// The learner of one unit, and the amounts of the requests.
#[derive(Debug)]
pub(crate) struct LearnedUnit {
    pub(crate) learner: Learner,
    /// The sum of what the requests in flight take. Negative for a moment if a settled amount arrives after the end.
    in_flight: i64,
    /// The sum of what the requests took that the server accepted.
    accepted: i64,
    /// The mean of the last amounts.
    each: u64,
    /// The server's limit. A larger amount counts as the limit.
    pub(crate) most: u32,
    /// When the limiter began to learn. Requests that were granted before do not count.
    since: u64,
    /// When the rate last fell. An amount that was taken before is not returned, because it was taken at a higher rate.
    lowered_at: u64,
}

impl LearnedUnit {
    /// Creates a learner whose rate never exceeds `ceiling`.
    pub(crate) fn new(unit: Unit, ceiling: f64, since: u64) -> Self {
        let learner = Learner { unit, ..Learner::new(ceiling) };
        let (most, lowered_at) = (u32::MAX, since);
        Self { learner, in_flight: 0, accepted: 0, each: 0, most, since, lowered_at }
    }

    pub(crate) fn unit(&self) -> Unit {
        self.learner.unit
    }

    /// Returns whether the permit of a request took an amount.
    pub(crate) fn is_of(&self, taken: &Taken) -> bool {
        taken.granted.get(self.unit()) > 0
    }

    /// Returns whether the amount of a request that was granted at `granted_at` counts.
    fn counts(&self, taken: &Taken, granted_at: u64) -> bool {
        self.is_of(taken) && granted_at >= self.since
    }

    /// Returns the amount that a request takes.
    fn own(&self, amounts: &Amounts) -> u32 {
        amounts.get(self.unit()).min(self.most)
    }

    pub(crate) fn progress(&self) -> Progress {
        let [accepted, in_flight] = [self.accepted, self.in_flight].map(|sum| sum.max(0).unsigned_abs());
        Progress { accepted, in_flight, each: self.each.max(1) }
    }

    /// Returns when a request gets its amount behind the amount of `ahead`. A request waits until the earlier ones are
    /// refilled, and not for its own amount, because the server's limit exceeds it. The result is never too late.
    pub(crate) fn due(&self, start: u64, ahead: u64, amounts: &Amounts) -> u64 {
        let own = self.own(amounts);
        if own == 0 && ahead == 0 {
            return start;
        }
        let (burst, most) = (self.learner.pacer.burst, u64::from(self.most));
        // An accepted probe counts as a mean amount, however much it takes.
        let ahead_of_probe = if self.learner.is_probing() { most } else { 0 };
        let behind = ahead.saturating_sub(ahead_of_probe);
        let total = match u64::from(own) {
            // The last request ahead may take the largest amount, and does not wait for it.
            0 => behind.min(behind.saturating_sub(most).saturating_add(burst)),
            own => behind.saturating_add(burst.min(own)),
        };
        self.learner.due(start, total, if ahead == 0 { own } else { 0 })
    }

    /// Raises the rate if the run is complete. Called before each grant.
    pub(crate) fn advance(&mut self, amounts: &Amounts, now: u64) {
        let own = self.own(amounts);
        if own > 0 {
            let progress = self.progress();
            self.change(now, |learner| learner.advance(progress, own, now));
        }
    }

    /// Returns whether a probe in flight does not delay a request.
    pub(crate) fn is_open(&self, amounts: &Amounts, now: u64) -> bool {
        self.own(amounts) == 0 || self.learner.probe_ends().is_none_or(|ends| ends <= now)
    }

    /// Takes the amount of a request that leaves now.
    pub(crate) fn take(&mut self, amounts: &Amounts, now: u64) {
        let own = self.own(amounts);
        if own > 0 {
            self.learner.grant(own, self.progress(), now);
            self.in_flight = self.in_flight.saturating_add(amounts.get(self.unit()).into());
            self.each = if self.each == 0 { own.into() } else { (15 * self.each + u64::from(own)) / 16 };
        }
    }

    /// Replaces the amount that a request took at `taken_at`. Returns whether it takes more than before.
    pub(crate) fn settle(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) -> bool {
        let amounts = [&taken.charged, actual];
        let [raw_before, raw_after] = amounts.map(|amounts| i64::from(amounts.get(self.unit())));
        let [before, after] = amounts.map(|amounts| self.own(amounts));
        if self.counts(taken, taken_at) {
            match taken.is_accepted {
                None => self.in_flight = self.in_flight.saturating_add(raw_after - raw_before),
                Some(true) => {
                    self.accepted = self.accepted.saturating_add(i64::from(after) - i64::from(before));
                }
                Some(false) => {}
            }
        }
        if after > before {
            self.learner.pacer.grant(after - before, now);
        } else if taken_at > self.lowered_at {
            self.learner.pacer.give_back(before - after);
        }
        after > before
    }

    /// Counts the end of a request that was granted at `granted_at`.
    pub(crate) fn end(&mut self, taken: &Taken, granted_at: u64) {
        if self.counts(taken, granted_at) {
            self.in_flight = self.in_flight.saturating_sub(taken.charged.get(self.unit()).into());
            if taken.is_accepted == Some(true) {
                self.accepted = self.accepted.saturating_add(self.own(&taken.charged).into());
            }
        }
    }

    /// Learns from a response, after the end of its request was counted. Returns whether the rate or the largest amount
    /// has changed, or whether a probe is due or has ended, and the end of a new pause.
    pub(crate) fn observe(&mut self, response: &Observation<'_>, now: u64) -> (bool, Option<u64>) {
        let (progress, most) = (self.progress(), self.most);
        let (is_changed, pause) = self.change(now, |learner| learner.learn(response, progress, now));
        let by_rate = |rate: f64| (rate * LARGEST) as u64 + 1;
        let quota = self.learner.quota().map(|(limit, _)| limit);
        let largest = quota.or_else(|| self.learner.rate.map(by_rate)).unwrap_or(u64::MAX);
        self.most = u32::try_from(largest).unwrap_or(u32::MAX);
        // An estimate before the first headers may be far above the limit.
        self.each = self.each.min(self.most.into());
        (is_changed || self.most != most, pause)
    }

    /// Ends a probe of this request, which proves nothing. Returns when the next probe may leave.
    pub(crate) fn lose(&mut self, taken: &Taken, granted_at: u64, was_sent: bool) -> Option<u64> {
        if self.is_of(taken) { self.learner.lose(granted_at, was_sent) } else { None }
    }

    pub(crate) fn set_ceiling(&mut self, ceiling: f64, now: u64) {
        self.change(now, |learner| learner.set_ceiling(ceiling));
    }

    /// Calls `change` with the learner, and records a lower rate.
    fn change<T>(&mut self, now: u64, change: impl FnOnce(&mut Learner) -> T) -> T {
        let before = self.learner.interval();
        let outcome = change(&mut self.learner);
        if self.learner.interval() > before {
            self.lowered_at = now;
        }
        outcome
    }

    /// Returns whether dropping the limiter loses no learned rate, because no rate is known, or the last grant was more
    /// than `kept` ago. Returns `false` while a probe is in flight.
    pub(crate) fn is_whole(&self, kept: u64, now: u64) -> bool {
        let is_kept =
            self.learner.rate.is_some() && now.saturating_sub(self.learner.recent.last_grant) <= kept;
        !is_kept && self.learner.probe_ends().is_none()
    }
}
