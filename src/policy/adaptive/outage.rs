//! Distinguishes an outage from throttling: both may respond with a 503.

use super::observation::SECOND;

/// After this many cuts by 503s without a complete run between them, or this many failed probes of one pause, the next
/// 503 shows an outage. After these cuts, the rate has fallen to about an eighth.
const MOST_OUTAGE_CUTS: u32 = 6;
/// The learner ignores 503s for this time after it has detected an outage.
pub(super) const OUTAGE: u64 = 60 * SECOND;

#[derive(Debug, Clone, Default)]
pub(super) struct Outage {
    /// The number of cuts by 503s since the last complete run.
    cuts: u32,
    /// The number of probes of the current pause that failed with a 503.
    failed_probes: u32,
    /// The rate before the first of these cuts. `None` if no rate was known.
    rate_before: Option<f64>,
    /// The end of the time in which 503s are ignored.
    until: u64,
}

impl Outage {
    /// Returns whether the learner ignores 503s.
    pub(super) fn is_ignored(&self, now: u64) -> bool {
        now < self.until
    }

    /// Counts a 503 that begins a pause, and that cuts the `rate` if one is known.
    pub(super) fn begin_pause(&mut self, rate: Option<f64>) {
        self.failed_probes = 0;
        if self.cuts == 0 {
            self.rate_before = rate;
        }
        self.cuts += u32::from(rate.is_some());
    }

    pub(super) fn fail_probe(&mut self) {
        self.failed_probes += 1;
    }

    /// Counts the estimate of a first rate as the first cut.
    pub(super) fn begin_rate(&mut self) {
        self.cuts = 1;
    }

    /// Ends a series of cuts, because a run was complete or another event has set the rate.
    pub(super) fn end_series(&mut self) {
        self.cuts = 0;
    }

    /// Returns the rate to restore if the 503s show an outage: the rate before the first cut, or the `current` rate if
    /// they cut none.
    pub(super) fn detect(&mut self, current: Option<f64>, now: u64) -> Option<Option<f64>> {
        if self.cuts.max(self.failed_probes) <= MOST_OUTAGE_CUTS {
            return None;
        }
        let restored = if self.cuts > 0 { self.rate_before } else { current };
        (self.cuts, self.until) = (0, now.saturating_add(OUTAGE));
        Some(restored)
    }
}
