//! The limits that the server reports in its responses: a pause, and the remaining permits of its quotas.
//!
//! - A delay that the server states is kept in full, up to a longest pause. A longer delay is a *long pause*: one
//!   request leaves after each longest pause, as a probe. The long pause ends when the server accepts a probe, or at
//!   the stated end.
//! - A throttled response that states no delay pauses a limiter with a quota for a short time. The time doubles with
//!   each further one, until the server accepts a request.

mod remaining;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::remaining::{Gate, Unconfirmed};
pub(super) use self::remaining::{Reporter, SlowStart};
use super::PauseSettings;
use crate::policy::{QuotaName, Remaining, nanos};

/// The maximum number of the server's quotas that are stored.
const MAX_GATES: usize = 8;

/// The server limits of one limiter. Times are nanoseconds since the queue's origin.
#[derive(Debug, Clone)]
pub(crate) struct ServerLimits {
    pub(crate) pause: Pause,
    gates: Vec<Gate>,
    /// The policies whose empty quotas do not apply, because the probe of a long pause succeeded although the server
    /// still reported them as empty.
    pub(crate) disproved: Vec<u64>,
    /// The quotas of tokens, points and other units, and when the server reported them.
    others: (Vec<Remaining>, u64),
    /// The slow start after the last pause.
    slow_start: Option<SlowStart>,
    /// Whether the limiter has a quota. A quota spreads queued requests after a pause, so no slow start is needed.
    pub(crate) has_quota: bool,
    pub(crate) unconfirmed: Unconfirmed,
}

/// The limits of a limiter with a quota, and of one without, before the server has reported any.
pub(crate) static WITH_QUOTA: ServerLimits = ServerLimits::new(true);

pub(crate) static WITHOUT_QUOTA: ServerLimits = ServerLimits::new(false);

impl ServerLimits {
    pub(crate) const fn new(has_quota: bool) -> Self {
        let unconfirmed = Unconfirmed::new();
        Self {
            pause: Pause::new(PauseSettings::DEFAULT),
            gates: Vec::new(),
            disproved: Vec::new(),
            others: (Vec::new(), 0),
            slow_start: None,
            has_quota,
            unconfirmed,
        }
    }

    /// Discards what the server reported.
    pub(crate) fn reset(&mut self) {
        (self.pause, self.gates, self.slow_start) = (Pause::new(self.pause.settings), Vec::new(), None);
        (self.disproved, self.others.0) = (Vec::new(), Vec::new());
    }

    /// Replaces the quotas of other units.
    pub(crate) fn report_others(&mut self, others: &[Remaining], now: u64) {
        self.others = (others.to_vec(), now);
    }

    /// Returns the quotas of other units that have not reset, with their resets counted from `now`.
    pub(crate) fn others_at(&self, now: u64) -> Vec<Remaining> {
        let (others, reported_at) = &self.others;
        let passed = Duration::from_nanos(now.saturating_sub(*reported_at));
        let left = |quota: &Remaining| quota.reset_after().checked_sub(passed).filter(|left| !left.is_zero());
        others.iter().filter_map(|quota| Some(quota.resetting_after(left(quota)?))).collect()
    }

    /// Returns when the pause ends, or its next probe may leave.
    pub(crate) fn opens_at(&self, now: u64) -> u64 {
        self.pause.until.max(now)
    }

    fn slow_start(&self) -> Option<SlowStart> {
        self.slow_start.filter(|_| !self.has_quota)
    }

    /// Applies the limits of a response that arrives now: a requested `pause` in nanoseconds, and the remaining
    /// permits. They are reduced by the permits in flight. An empty quota whose reset is later than the longest pause
    /// is a requested delay, unless the server is known to accept requests beyond it. No gate is longer than the
    /// longest pause. Returns whether the limits became stricter.
    pub(crate) fn apply<'a>(
        &mut self,
        pause: Option<u64>,
        remaining: impl IntoIterator<Item = &'a Remaining, IntoIter: Clone>,
        reporter: Reporter,
        now: u64,
    ) -> bool {
        self.tidy(now);
        let longest = self.pause.settings.longest;
        let remaining = remaining.into_iter();
        for remaining in remaining.clone().filter(|quota| quota.left() > 0 || !reporter.is_accepted) {
            self.disproved.retain(|policy| *policy != remaining.policy());
        }
        let disproved = self.disproved.clone();
        let remaining = remaining.filter(|remaining| !disproved.contains(&remaining.policy()));
        let empty = remaining.clone().filter(|remaining| remaining.left() == 0);
        let distant = empty.map(|empty| nanos(empty.reset_after())).filter(|reset| *reset > longest);
        let stated = pause.into_iter().chain(distant).max();
        let mut stricter = stated.is_some_and(|delay| self.state_pause(now.saturating_add(delay), now));
        for remaining in remaining {
            let gate = Gate::new(remaining, reporter, longest, now);
            stricter |= match self.gates.iter_mut().find(|known| known.policy == gate.policy) {
                Some(known) => known.update(gate, reporter, now),
                None => self.add(gate),
            };
        }
        stricter
    }

    /// Adds a gate. If there is no room, replaces the gate with the most permits, provided that the new gate is
    /// stricter. Returns whether the limits changed.
    fn add(&mut self, gate: Gate) -> bool {
        if self.gates.len() < MAX_GATES {
            self.gates.push(gate);
            return true;
        }
        match self.gates.iter_mut().max_by_key(|known| known.left) {
            Some(widest) if widest.left > gate.left => {
                *widest = gate;
                true
            }
            // Both gates allow the same number of permits, so the stored gate takes the later end.
            Some(narrow) if narrow.left == gate.left && narrow.until < gate.until => {
                narrow.until = gate.until;
                narrow.shut |= gate.shut;
                true
            }
            _ => false,
        }
    }

    /// Extends the pause, but never shortens it. Returns whether it became longer.
    pub(crate) fn pause(&mut self, until: u64, now: u64) -> bool {
        let is_longer = self.pause.extend(until, now);
        self.slow_start_after_pause(is_longer)
    }

    /// Pauses until a time that the server stated. Returns whether the pause became longer.
    pub(crate) fn state_pause(&mut self, until: u64, now: u64) -> bool {
        let is_longer = self.pause.state(until, now);
        self.slow_start_after_pause(is_longer)
    }

    /// Lets the requests leave one by one after a pause, if it became longer.
    pub(crate) fn slow_start_after_pause(&mut self, is_longer: bool) -> bool {
        if is_longer {
            self.begin_slow_start(self.pause.until, 1);
        }
        is_longer
    }

    /// Records that the probe of a long pause succeeded, and that the server reported these quotas. An empty one with a
    /// distant reset applies again when the server reports permits, or rejects a request.
    pub(crate) fn disprove(&mut self, remaining: &[Remaining]) {
        let longest = self.pause.settings.longest;
        let is_distant = |quota: &&Remaining| quota.left() == 0 && nanos(quota.reset_after()) > longest;
        for empty in remaining.iter().filter(is_distant) {
            self.disproved.retain(|policy| *policy != empty.policy());
            self.disproved.push(empty.policy());
        }
        let excess = self.disproved.len().saturating_sub(MAX_GATES);
        self.disproved.drain(..excess);
    }

    /// Ends a long pause, because the server responded to its probe.
    pub(crate) fn end_long_pause(&mut self, now: u64) {
        (self.pause.until, self.pause.stated_until) = (0, 0);
        self.slow_start = Some(SlowStart::new(now, 1));
    }

    /// Lets the next probe of a long pause leave now, because the last one was not sent.
    pub(crate) fn renew_probe(&mut self, now: u64) {
        self.pause.until = now;
        self.slow_start = Some(SlowStart::new(now, 1));
    }

    fn begin_slow_start(&mut self, from: u64, first: u64) {
        if self.slow_start.is_none_or(|start| start.from < from) {
            self.slow_start = Some(SlowStart::new(from, first));
        }
    }

    /// Returns whether a permit that was granted at `granted_at` but not used expires, because the limiter is paused or
    /// the server reported no remaining permits.
    pub(crate) fn is_shut(&self, granted_at: u64, now: u64) -> bool {
        self.pause.is_on(now) && !self.pause.is_probe(granted_at)
            || self.gates.iter().any(|gate| gate.shut && now < gate.until)
    }

    /// Returns the earliest time at which the server limits allow `cost` permits.
    pub(crate) fn earliest(&self, now: u64, cost: u64) -> u64 {
        let gates = self.gates.iter().filter(|gate| now < gate.until && gate.left < cost);
        let slow = self.slow_start().map_or(now, |slow| slow.due(cost));
        gates.map(|gate| gate.until).max().unwrap_or(now).max(self.pause.until).max(slow).max(now)
    }

    /// Returns when the last of `total` permits is available under the server limits and the limiter's algorithm.
    /// `algorithm` forecasts from a start time and a number of permits.
    pub(crate) fn forecast(&self, algorithm: impl Fn(u64, u64) -> u64, now: u64, total: u64) -> u64 {
        let start = now.max(self.pause.until);
        let late = self.gates.iter().filter(|gate| now < gate.until && gate.left < total).map(|gate| {
            let (from, total) = (gate.until.max(start), total - gate.left);
            let slow = if self.has_quota { from } else { SlowStart::new(gate.until, gate.peak).due(total) };
            algorithm(from, total).max(slow)
        });
        let slow = self.slow_start().map_or(start, |slow| slow.due(total));
        late.fold(algorithm(start, total).max(slow), u64::max)
    }

    /// Returns the name of the quota that delays the last of `total` permits, unless a pause delays it for longer.
    pub(crate) fn delaying(&self, now: u64, total: u64) -> Option<QuotaName> {
        let gates = self.gates.iter().filter(|gate| now < gate.until && gate.left < total);
        let last = gates.max_by_key(|gate| gate.until)?;
        self.pause.end(now).is_none_or(|end| end <= last.until).then_some(last.name)
    }

    pub(crate) fn spend(&mut self, cost: u64, now: u64) {
        for gate in &mut self.gates {
            gate.left = gate.left.saturating_sub(cost);
        }
        if let Some(start) = &mut self.slow_start {
            start.spend(cost);
        }
        if self.pause.is_long() {
            self.pause.probe(now);
            self.begin_slow_start(self.pause.until, 1);
        }
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.pause.applies() || !self.gates.is_empty() || self.slow_start().is_some()
    }

    /// Removes expired limits. Returns whether a limit still applies.
    pub(crate) fn tidy(&mut self, now: u64) -> bool {
        let opened = self.gates.iter().filter(|gate| gate.until <= now).max_by_key(|gate| gate.until);
        if let Some((opened, peak)) = opened.map(|gate| (gate.until, gate.peak)) {
            self.begin_slow_start(opened, peak);
        }
        self.gates.retain(|gate| now < gate.until);
        self.pause.tidy(now);
        self.slow_start = self.slow_start.filter(|start| !start.is_over(now));
        self.any()
    }

    /// Returns the smallest number of permits that a gate, a long pause or the slow start still allows, or `None`
    /// without a limit.
    pub(crate) fn left(&self, now: u64) -> Option<u64> {
        let probe = self.pause.probe_at(now).map(|at| u64::from(at <= now));
        let gates = self.gates.iter().filter(|gate| now < gate.until).map(|gate| gate.left);
        gates.chain(probe).chain(self.slow_start().and_then(|start| start.left(now))).min()
    }
}

/// A pause that a response began, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunPause {
    pub length: u64,
    /// The time until the first probe of a long pause.
    pub probe_after: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Pause {
    pub(crate) settings: PauseSettings,
    /// No request leaves before this time. In a long pause, this is the time of the next probe.
    pub(super) until: u64,
    /// The stated end of a long pause. Zero if there is none.
    stated_until: u64,
    /// When the long pause began. A permit that was granted later is a probe.
    began_at: u64,
    /// The latest pause after a throttled response without a delay. Zero after an accepted response.
    throttled: u64,
    /// The end of that pause.
    throttled_until: u64,
    pub(crate) begun: Option<BegunPause>,
}

impl Pause {
    pub(super) const fn new(settings: PauseSettings) -> Self {
        Self {
            settings,
            until: 0,
            stated_until: 0,
            began_at: 0,
            throttled: 0,
            throttled_until: 0,
            begun: None,
        }
    }

    #[inline]
    pub(super) fn applies(&self) -> bool {
        self.until > 0 || self.is_long()
    }

    /// Returns whether the server stated a delay beyond the longest pause.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.stated_until > 0
    }

    /// Returns whether the limiter waits for an accepted response.
    #[inline]
    pub(crate) fn awaits_acceptance(&self) -> bool {
        self.throttled > 0 || self.is_long()
    }

    /// Returns whether no request may leave.
    pub(crate) fn is_on(&self, now: u64) -> bool {
        now < self.until
    }

    /// Returns the end of the pause, which is the stated end of a long pause.
    pub(crate) fn end(&self, now: u64) -> Option<u64> {
        Some(self.until.max(self.stated_until)).filter(|end| now < *end)
    }

    /// Returns when the next probe of a long pause may leave.
    pub(crate) fn probe_at(&self, now: u64) -> Option<u64> {
        (now < self.stated_until).then(|| self.until.max(now))
    }

    /// Returns whether a permit that was granted at `granted_at` is the probe of a long pause.
    pub(crate) fn is_probe(&self, granted_at: u64) -> bool {
        self.is_long() && granted_at > self.began_at
    }

    /// Extends the pause, but never shortens it. Returns whether it became longer.
    pub(super) fn extend(&mut self, until: u64, now: u64) -> bool {
        let is_longer = until > self.until.max(now);
        if is_longer {
            // Probes that have left do not end this pause.
            (self.until, self.began_at) = (until, now);
        }
        is_longer
    }

    /// Pauses until a time that the server stated, or until the first probe. Returns whether the pause became longer.
    pub(super) fn state(&mut self, until: u64, now: u64) -> bool {
        let probe_at = now.saturating_add(self.settings.longest);
        if until <= probe_at {
            return self.extend(until, now);
        }
        let is_longer = self.end(now).is_none_or(|end| end < until);
        if !self.is_long() {
            self.began_at = now;
            self.begun = Some(BegunPause { length: until - now, probe_after: Some(self.settings.longest) });
        }
        (self.until, self.stated_until) = (self.until.max(probe_at), self.stated_until.max(until));
        is_longer
    }

    /// Pauses after a throttled response without a delay to a request that was granted at `granted_at`. Returns whether
    /// the pause became longer.
    pub(crate) fn throttle(&mut self, granted_at: u64, now: u64) -> bool {
        let is_further = self.throttled > 0 && granted_at >= self.throttled_until;
        let begins = self.throttled == 0 || is_further;
        if self.throttled == 0 {
            self.throttled = self.settings.throttled();
        } else if is_further {
            self.throttled = self.throttled.saturating_mul(2).min(nanos(PauseSettings::LONGEST_THROTTLED));
        }
        self.throttled_until = now.saturating_add(self.throttled);
        let is_longer = self.extend(self.throttled_until, now);
        if begins && is_longer {
            self.begun = Some(BegunPause { length: self.throttled, probe_after: None });
        }
        is_longer
    }

    /// Records that the server accepted a request that was granted at `granted_at`.
    pub(crate) fn accept(&mut self, granted_at: u64) {
        if granted_at >= self.throttled_until {
            self.throttled = 0;
        }
    }

    /// Records that a probe leaves, and postpones the next one.
    pub(super) fn probe(&mut self, now: u64) {
        if self.is_long() {
            self.until = now.saturating_add(self.settings.longest).min(self.stated_until);
        }
    }

    pub(super) fn tidy(&mut self, now: u64) {
        if self.until <= now {
            self.until = 0;
        }
        if self.stated_until <= now {
            self.stated_until = 0;
        }
    }
}
