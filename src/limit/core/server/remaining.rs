//! The remaining permits of the server's quotas, the requests that they may not contain yet, and the slow start.

use std::collections::VecDeque;

use crate::policy::{QuotaName, Remaining, nanos};

/// The remaining permits of one quota of the server: allows at most `left` permits before `until`.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) policy: u64,
    pub(super) name: QuotaName,
    pub(super) left: u64,
    pub(super) until: u64,
    /// Whether the server reported that no permits remain. If so, permits that were granted before but are not used yet
    /// expire.
    pub(super) shut: bool,
    /// The largest number of remaining permits reported while the gate applied. The slow start begins with this number.
    pub(super) peak: u64,
    /// The value of `until` on which the latest forecasts for the waiters are based.
    pub(super) forecast_until: u64,
    /// Whether the server reported no reset.
    pub(super) is_estimate: bool,
    /// When the report arrived that determined `left`.
    pub(super) reported_at: u64,
    /// The permits of the requests whose reports have been ignored since then.
    pub(super) ignored: u64,
}

/// The request whose response reports the remaining permits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter {
    pub(crate) is_accepted: bool,
    pub(crate) cost: u64,
    pub(crate) sent_at: u64,
    /// The permits that the server may not have counted yet.
    pub(crate) in_flight: u64,
}

/// The smallest shift of a gate's end that invalidates the forecasts: 1 s in nanoseconds. Smaller shifts come from
/// rounding, because servers count in whole seconds.
pub(super) const SHIFT: u64 = 1_000_000_000;

impl Gate {
    /// Creates the gate of a quota that is reported now. No gate is longer than `longest`.
    pub(super) fn new(remaining: &Remaining, reporter: Reporter, longest: u64, now: u64) -> Self {
        let until = now.saturating_add(nanos(remaining.reset_after()).min(longest));
        Self {
            policy: remaining.policy(),
            name: remaining.name(),
            left: remaining.left().saturating_sub(reporter.in_flight),
            until,
            shut: remaining.left() == 0,
            peak: remaining.left(),
            forecast_until: until,
            is_estimate: remaining.is_estimate(),
            reported_at: now,
            ignored: 0,
        }
    }

    /// Updates the gate from a new report. The gate itself counts the granted permits, so a report of more permits must
    /// be an older one. An older report neither raises the count nor postpones the end. Returns whether the waiters'
    /// forecasts change.
    ///
    /// Without a reported reset, the server's window may have ended before the gate. A report of more permits then
    /// replaces the gate if its request was sent after the last report that counted. The server may have counted the
    /// requests whose reports were ignored since then after this one, so their permits are subtracted.
    pub(super) fn update(&mut self, reported: Self, reporter: Reporter, now: u64) -> bool {
        let more = reported.left.saturating_sub(self.ignored);
        let is_newer = reported.is_estimate && reporter.sent_at > self.reported_at && more > self.left;
        if now >= self.until {
            *self = reported;
            return true;
        }
        if is_newer {
            *self = Self { left: more, ..reported };
            return true;
        }
        self.peak = self.peak.max(reported.peak);
        let fewer = reported.left < self.left;
        if fewer || reported.left == self.left {
            self.left = reported.left;
            self.until = self.until.max(reported.until);
            self.shut |= reported.shut;
            (self.reported_at, self.ignored) = (now, 0);
        } else {
            self.ignored = self.ignored.saturating_add(reporter.cost);
        }
        let changed = fewer || self.until.saturating_sub(self.forecast_until) >= SHIFT;
        if changed {
            self.forecast_until = self.until;
        }
        changed
    }
}

/// The longest time that a dropped request may take to reach the server: 10 s in nanoseconds, a preset's attempt
/// timeout.
const TRANSIT: u64 = 10_000_000_000;

/// Requests that are dropped within the same 100 ms share an entry, so that there are at most about 100 entries.
const RESOLUTION: u64 = TRANSIT / 100;

/// Requests that ended without a response. They may still reach the server, so they count against the remaining permits
/// that the server reports.
#[derive(Debug, Clone)]
pub(crate) struct Unconfirmed {
    /// Each entry contains the time until which its requests count, and the sum of their permits.
    entries: VecDeque<(u64, u64)>,
}

impl Unconfirmed {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new() }
    }

    pub(crate) fn add(&mut self, permits: u64, now: u64) {
        while self.entries.front().is_some_and(|(until, _)| *until <= now) {
            self.entries.pop_front();
        }
        match self.entries.back_mut() {
            Some((until, sum)) if now.saturating_add(TRANSIT) <= *until => {
                *sum = sum.saturating_add(permits);
            }
            _ => self.entries.push_back((now.saturating_add(TRANSIT + RESOLUTION), permits)),
        }
    }

    pub(crate) fn permits(&self, now: u64) -> u64 {
        let counted = self.entries.iter().filter(|(until, _)| *until > now);
        counted.fold(0, |sum, (_, permits)| sum.saturating_add(*permits))
    }
}

/// The time in which the total number of permits doubles: 100 ms in nanoseconds, the duration of a round trip across an
/// ocean.
const STEP: u64 = 100_000_000;

/// The slow start ends after this many steps, which take 2 s. By then, the total number of permits has grown by a
/// factor of a million.
const STEPS: u32 = 20;

/// The slow start of queued requests after a pause, if no quota spreads them. It begins with the remaining permits that
/// the server reported, or with one permit. The total doubles with each step.
///
/// The first requests test whether the pause was long enough. If the server rejects them, a new pause holds back all
/// later requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlowStart {
    pub(crate) from: u64,
    /// The number of permits at the start, at least 1.
    first: u64,
    spent: u64,
}

impl SlowStart {
    /// Starts at `from` with `first` permits, or with one if `first` is 0.
    pub(crate) fn new(from: u64, first: u64) -> Self {
        Self { from, first: first.max(1), spent: 0 }
    }

    /// Returns when the last of `total` more permits is available.
    pub(crate) fn due(&self, total: u64) -> u64 {
        self.from.saturating_add(self.offset(self.spent.saturating_add(total)))
    }

    pub(crate) fn spend(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// Returns how many more permits are available, or `None` if the slow start is over.
    pub(crate) fn left(&self, now: u64) -> Option<u64> {
        let Some(elapsed) = now.checked_sub(self.from) else { return Some(0) };
        if over(elapsed) {
            return None;
        }
        let doubled = u128::from(self.first) << (elapsed / STEP);
        let began = doubled * u128::from(elapsed % STEP) / u128::from(STEP);
        let total = u64::try_from(doubled + began).unwrap_or(u64::MAX);
        Some(total.saturating_sub(self.spent))
    }

    pub(crate) fn is_over(&self, now: u64) -> bool {
        now.checked_sub(self.from).is_some_and(over)
    }

    /// Returns how long after the start the last of the first `total` permits is available. The number of available
    /// permits doubles with each step, and grows evenly within a step.
    fn offset(&self, total: u64) -> u64 {
        let Some(steps) = (total / self.first).checked_ilog2() else { return 0 };
        if steps >= STEPS {
            return STEP * u64::from(STEPS);
        }
        let doubled = u128::from(self.first) << steps;
        let began = (u128::from(total) - doubled) * u128::from(STEP);
        STEP * u64::from(steps) + began.div_ceil(doubled) as u64
    }
}

fn over(elapsed: u64) -> bool {
    elapsed >= STEP * u64::from(STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_the_permits_with_each_step() {
        let start = SlowStart::new(7, 0);
        let times = [1, 2, 3, 4, 6, 8, 1_024].map(|total| (start.due(total) - 7) / 1_000_000);
        assert_eq!(times, [0, 100, 150, 200, 250, 300, 1_000]);
        assert_eq!(start.due(u64::MAX), 7 + 2_000_000_000);
        let start = SlowStart::new(0, 100);
        let times = [1, 100, 150, 200, 300, 400, 102_400].map(|total| start.due(total) / 1_000_000);
        assert_eq!(times, [0, 0, 50, 100, 150, 200, 1_000]);
    }

    #[test]
    fn slow_start_permits_are_available_exactly_at_their_due_time() {
        for (spent, first) in [(0, 1), (1, 1), (5, 1), (100, 1), (0, 7), (90, 7), (8, 1_000)] {
            let mut start = SlowStart::new(1_000, first);
            start.spend(spent);
            for more in 1..600 {
                let due = start.due(more);
                assert!(start.left(due).unwrap() >= more, "{spent} spent, {more} more");
                assert!(due == 1_000 || start.left(due - 1).unwrap() < more, "{spent} spent, {more} more");
            }
        }
        assert_eq!(SlowStart::new(1_000, 1).left(0), Some(0));
        assert!(
            !SlowStart::new(1_000, 1).is_over(2_000_000_999)
                && SlowStart::new(1_000, 1).is_over(2_000_001_000)
        );
        assert_eq!(SlowStart::new(1_000, 1).left(2_000_001_000), None);
    }

    #[test]
    fn unconfirmed_requests_count_for_ten_seconds_and_use_bounded_memory() {
        let mut unconfirmed = Unconfirmed::new();
        let millisecond = 1_000_000;
        for now in 0..60_000 {
            unconfirmed.add(1, now * millisecond);
            let remembered = unconfirmed.permits(now * millisecond);
            assert!(remembered >= (now + 1).min(10_000), "{remembered} at {now} ms");
            assert!(remembered <= 10_200, "{remembered} at {now} ms");
            assert!(unconfirmed.entries.len() <= 102);
        }
        assert_eq!(unconfirmed.permits(71_000 * millisecond), 0);
    }
}
