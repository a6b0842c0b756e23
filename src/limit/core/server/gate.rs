//! The remaining permits of one quota of the server.

use crate::policy::{QuotaName, Remaining, nanos};

/// Allows at most `left` permits before `until`.
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
