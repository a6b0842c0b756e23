//! The server limits in force: a pause, and the remaining permits of the server's quotas.

use super::{slow_start::SlowStart, unconfirmed::Unconfirmed};
use crate::policy::{Remaining, nanos};

/// The maximum number of the server's quotas that are stored.
const MAX_GATES: usize = 8;

/// The server limits of one limiter. Times are nanoseconds since the queue's origin.
#[derive(Debug, Clone)]
pub(in crate::limit::core) struct ServerLimits {
    paused_until: u64,
    gates: Vec<Gate>,
    /// The slow start after the last pause.
    slow_start: Option<SlowStart>,
    /// Whether the limiter has a quota. A quota spreads queued requests after a pause, so no slow start is needed.
    pub(in crate::limit::core) has_quota: bool,
    pub(in crate::limit::core) unconfirmed: Unconfirmed,
}

/// The limits of a limiter with a quota, and of one without, before the server has reported any.
pub(in crate::limit::core) static WITH_QUOTA: ServerLimits = ServerLimits::new(true);
pub(in crate::limit::core) static WITHOUT_QUOTA: ServerLimits = ServerLimits::new(false);

/// Allows at most `left` permits before `until`.
#[derive(Debug, Clone)]
struct Gate {
    policy: u64,
    left: u64,
    until: u64,
    /// Whether the server reported that no permits remain. If so, permits that were granted before but are not used yet
    /// expire.
    shut: bool,
    /// The largest number of remaining permits reported while the gate applied. The slow start begins with this number.
    peak: u64,
    /// The value of `until` on which the latest forecasts for the waiters are based.
    forecast_until: u64,
}

/// The smallest shift of a gate's end that invalidates the forecasts: 1 s in nanoseconds. Smaller shifts come from
/// rounding, because servers count in whole seconds.
const SHIFT: u64 = 1_000_000_000;

impl ServerLimits {
    pub(in crate::limit::core) const fn new(has_quota: bool) -> Self {
        let unconfirmed = Unconfirmed::new();
        Self { paused_until: 0, gates: Vec::new(), slow_start: None, has_quota, unconfirmed }
    }

    /// Discards what the server reported.
    pub(in crate::limit::core) fn reset(&mut self) {
        (self.paused_until, self.gates, self.slow_start) = (0, Vec::new(), None);
    }

    fn slow_start(&self) -> Option<SlowStart> {
        self.slow_start.filter(|_| !self.has_quota)
    }

    /// Applies the limits of a response that arrives now: a requested `pause` in nanoseconds, and the remaining
    /// permits. They are reduced by `in_flight`, the permits that the server may not have counted yet. Returns whether
    /// the limits became stricter.
    pub(in crate::limit::core) fn apply(
        &mut self,
        pause: Option<u64>,
        remaining: &[Remaining],
        now: u64,
        in_flight: u64,
    ) -> bool {
        self.tidy(now);
        let mut stricter = pause.is_some_and(|pause| self.pause(now.saturating_add(pause), now));
        for remaining in remaining {
            let left = remaining.left().saturating_sub(in_flight);
            let until = now.saturating_add(nanos(remaining.reset_after()));
            let (policy, peak) = (remaining.policy(), remaining.left());
            let gate = Gate { policy, left, until, shut: peak == 0, peak, forecast_until: until };
            stricter |= match self.gates.iter_mut().find(|known| known.policy == gate.policy) {
                Some(known) => known.narrow(gate, now),
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
    pub(in crate::limit::core) fn pause(&mut self, until: u64, now: u64) -> bool {
        let longer = until > self.paused_until.max(now);
        if longer {
            self.paused_until = until;
            self.begin_slow_start(until, 1);
        }
        longer
    }

    fn begin_slow_start(&mut self, from: u64, first: u64) {
        if self.slow_start.is_none_or(|start| start.from < from) {
            self.slow_start = Some(SlowStart::new(from, first));
        }
    }

    pub(in crate::limit::core) fn paused_until(&self, now: u64) -> Option<u64> {
        Some(self.paused_until).filter(|until| now < *until)
    }

    /// Returns whether all granted but unused permits expire, because the limiter is paused or the server reported no
    /// remaining permits.
    pub(in crate::limit::core) fn is_shut(&self, now: u64) -> bool {
        now < self.paused_until || self.gates.iter().any(|gate| gate.shut && now < gate.until)
    }

    /// Returns the earliest time at which the server limits allow `cost` permits.
    pub(in crate::limit::core) fn earliest(&self, now: u64, cost: u64) -> u64 {
        let gates = self.gates.iter().filter(|gate| now < gate.until && gate.left < cost);
        let slow = self.slow_start().map_or(now, |slow| slow.due(cost));
        gates.map(|gate| gate.until).max().unwrap_or(now).max(self.paused_until).max(slow).max(now)
    }

    /// Returns when the last of `total` permits is available under the server limits and the limiter's algorithm.
    /// `algorithm` forecasts from a start time and a number of permits.
    pub(in crate::limit::core) fn forecast(
        &self,
        algorithm: impl Fn(u64, u64) -> u64,
        now: u64,
        total: u64,
    ) -> u64 {
        let start = now.max(self.paused_until);
        let late = self.gates.iter().filter(|gate| now < gate.until && gate.left < total).map(|gate| {
            let (from, total) = (gate.until.max(start), total - gate.left);
            let slow = if self.has_quota { from } else { SlowStart::new(gate.until, gate.peak).due(total) };
            algorithm(from, total).max(slow)
        });
        let slow = self.slow_start().map_or(start, |slow| slow.due(total));
        late.fold(algorithm(start, total).max(slow), u64::max)
    }

    pub(in crate::limit::core) fn spend(&mut self, cost: u64) {
        for gate in &mut self.gates {
            gate.left = gate.left.saturating_sub(cost);
        }
        if let Some(start) = &mut self.slow_start {
            start.spend(cost);
        }
    }

    #[inline]
    pub(in crate::limit::core) fn any(&self) -> bool {
        self.paused_until > 0 || !self.gates.is_empty() || self.slow_start().is_some()
    }

    /// Removes expired limits. Returns whether a limit still applies.
    pub(in crate::limit::core) fn tidy(&mut self, now: u64) -> bool {
        let opened = self.gates.iter().filter(|gate| gate.until <= now).max_by_key(|gate| gate.until);
        if let Some((opened, peak)) = opened.map(|gate| (gate.until, gate.peak)) {
            self.begin_slow_start(opened, peak);
        }
        self.gates.retain(|gate| now < gate.until);
        if self.paused_until <= now {
            self.paused_until = 0;
        }
        self.slow_start = self.slow_start.filter(|start| !start.is_over(now));
        self.any()
    }

    /// Returns the smallest number of permits that a gate or the slow start still allows, or `None` without a limit.
    pub(in crate::limit::core) fn left(&self, now: u64) -> Option<u64> {
        let gates = self.gates.iter().filter(|gate| now < gate.until).map(|gate| gate.left);
        gates.chain(self.slow_start().and_then(|start| start.left(now))).min()
    }
}

impl Gate {
    /// Updates the gate from a new report. The gate itself counts the granted permits, so a report of more permits must
    /// be an older one. An older report neither raises the count nor postpones the end. Returns whether the waiters'
    /// forecasts change.
    fn narrow(&mut self, reported: Self, now: u64) -> bool {
        if now >= self.until {
            *self = reported;
            return true;
        }
        self.peak = self.peak.max(reported.peak);
        let fewer = reported.left < self.left;
        if fewer || reported.left == self.left {
            self.left = reported.left;
            self.until = self.until.max(reported.until);
            self.shut |= reported.shut;
        }
        let changed = fewer || self.until.saturating_sub(self.forecast_until) >= SHIFT;
        if changed {
            self.forecast_until = self.until;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(left: u64, until: u64) -> Gate {
        Gate { policy: left, left, until, shut: false, peak: left, forecast_until: until }
    }

    fn stored(limits: &ServerLimits) -> Vec<(u64, u64)> {
        limits.gates.iter().map(|gate| (gate.left, gate.until)).collect()
    }

    #[test]
    fn full_list_of_server_quotas_keeps_those_with_the_fewest_permits() {
        let mut limits = ServerLimits::new(true);
        assert!(!limits.any());
        assert!((1..=8).all(|left| limits.add(gate(left, 100))));
        for (new, taken) in
            [(gate(9, 900), false), (gate(8, 100), false), (gate(8, 99), false), (gate(8, 200), true)]
        {
            assert_eq!(limits.add(new), taken);
        }
        assert_eq!(
            stored(&limits).pop(),
            Some((8, 200)),
            "keeps the gate that ends later if both have equal permits"
        );
        assert!(limits.add(gate(3, 50)));
        let mut narrow = stored(&limits);
        narrow.sort_unstable();
        assert_eq!(narrow, [(1, 100), (2, 100), (3, 50), (3, 100), (4, 100), (5, 100), (6, 100), (7, 100)]);
    }

    #[test]
    fn forecast_changes_if_fewer_permits_remain_or_the_reset_moves_by_a_second() {
        let mut known = gate(5, SHIFT);
        assert!(!known.narrow(gate(5, SHIFT), 0), "same report again");
        assert!(!known.narrow(gate(6, 9 * SHIFT), 0), "older report with more permits");
        assert!(!known.narrow(gate(5, 2 * SHIFT - 1), 0), "end moves by less than a second");
        assert!(known.narrow(gate(5, 2 * SHIFT), 0));
        assert!(!known.narrow(gate(5, 2 * SHIFT), 0), "end is already known");
        assert!(known.narrow(gate(4, SHIFT), 0));
        assert_eq!((known.left, known.until, known.peak), (4, 2 * SHIFT, 6));
        assert!(known.narrow(gate(7, 3 * SHIFT), 2 * SHIFT), "any report replaces a gate that has ended");
        assert_eq!((known.left, known.until), (7, 3 * SHIFT));
    }

    #[test]
    fn server_quota_without_permits_stays_shut_until_its_reset() {
        // Fills the list with eight gates that have no permits but are not shut. A ninth gate, which is shut and ends
        // later, updates one of them.
        let mut limits = ServerLimits::new(true);
        assert!((1..=8).all(|policy| limits.add(Gate { policy, ..gate(0, 100) })));
        assert!(!limits.is_shut(50));
        assert!(limits.add(Gate { shut: true, ..gate(0, 200) }));
        assert!(limits.is_shut(50) && limits.is_shut(199) && !limits.is_shut(200));

        let mut known = gate(0, 100);
        for (shut, then) in [(false, false), (true, true), (true, true), (false, true)] {
            known.narrow(Gate { shut, ..gate(0, 100) }, 50);
            assert_eq!(known.shut, then);
        }
    }

    #[test]
    fn pause_is_replaced_only_by_a_longer_pause() {
        let mut limits = ServerLimits::new(true);
        assert!(
            !limits.pause(10, 10) && limits.pause(11, 10) && !limits.pause(11, 10) && !limits.pause(5, 0)
        );
        assert_eq!((limits.paused_until(10), limits.paused_until(11)), (Some(11), None));
        assert!(limits.tidy(10) && !limits.tidy(11));
        limits.add(gate(0, 20));
        assert!(limits.tidy(19) && !limits.tidy(20));
    }

    #[test]
    fn slow_start_begins_when_the_last_limit_ends() {
        for (gate_ends, pause_ends) in [(50, 100), (100, 100)] {
            let mut limits = ServerLimits::new(false);
            limits.pause(pause_ends, 0);
            limits.add(gate(20, gate_ends));
            limits.tidy(gate_ends);
            assert_eq!(
                limits.left(gate_ends),
                Some(u64::from(gate_ends == pause_ends)),
                "one permit after the pause"
            );
        }
        let mut limits = ServerLimits::new(false);
        limits.pause(50, 0);
        limits.add(gate(20, 100));
        limits.tidy(100);
        assert_eq!(limits.left(100), Some(20));
    }
}
