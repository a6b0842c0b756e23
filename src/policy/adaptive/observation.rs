//! The inputs of a learner: the progress of all requests, and single responses. Also what the learner concludes from
//! several of them: the rate that the server accepted recently, and an outage.

use crate::policy::rate_limit::Remaining;

/// A second in nanoseconds, the unit of all times.
pub(super) const SECOND: u64 = 1_000_000_000;

/// The counts that the queue keeps for the learner: of permits, or of the amounts of a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// The number of permits whose requests the server accepted so far.
    pub(crate) accepted: u64,
    /// The number of granted permits whose requests are neither completed nor dropped.
    pub(crate) in_flight: u64,
    /// How much a usual request takes: one permit, or the mean amount.
    pub(crate) each: u64,
}

/// Whether a server's rate limit accepted a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// It accepted the request.
    Accepted,
    /// It rejected the request.
    Throttled,
    /// A 503 that reports no quota without remaining permits: a throttle, or an outage.
    Unavailable,
}

/// A response of the server.
#[derive(Debug)]
pub(crate) struct Observation<'a> {
    pub(crate) acceptance: Acceptance,
    pub(crate) granted_at: u64,
    pub(crate) sent_at: u64,
    /// The delay that the server requested, in nanoseconds.
    pub(crate) requested_pause: Option<u64>,
    /// The shortest pause after a throttled response that states no end, in nanoseconds.
    pub(crate) least_pause: u64,
    pub(crate) remaining: &'a [Remaining],
}

/// The reason for the latest change of a learned rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LearnedFrom {
    /// The quota in the server's rate-limit headers.
    #[default]
    Headers,
    /// A throttled response, such as a 429.
    Throttling,
    /// A time without throttled responses, or 503s that do not depend on the rate.
    Success,
}

impl LearnedFrom {
    /// Returns the name in log events: `headers`, `throttling` or `success`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Throttling => "throttling",
            Self::Success => "success",
        }
    }
}

/// The number of accepted requests that a run of the slow start needs, and that an estimate of the rate needs.
pub(super) const START_RUN: u64 = 10;

/// The length of a period. An estimate covers only the current and the previous period, so that an earlier idle time
/// does not lower it.
const PERIOD: u64 = 60 * SECOND;

/// An idle time, which is also the time after which the slow start begins again: 2 s in nanoseconds.
pub(crate) const IDLE: u64 = 2 * SECOND;

/// Counts the requests that a server accepted recently.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent {
    /// The current and the previous period. `None` before the first request.
    periods: Option<[Period; 2]>,
    pub(super) last_grant: u64,
}

#[derive(Debug, Clone, Copy)]
struct Period {
    from: u64,
    /// The total of accepted requests at the start.
    accepted: u64,
}

impl Recent {
    /// Counts a grant. After an idle time the count starts again, because the requests before it show the demand and
    /// not the limit. The probes of a pause do not count, so that a long pause begins no periods.
    pub(super) fn grant(&mut self, progress: Progress, is_probe: bool, now: u64) {
        let is_idle = now.saturating_sub(self.last_grant) > IDLE;
        self.last_grant = now;
        if is_probe {
            return;
        }
        let next = Period { from: now, accepted: progress.accepted };
        match &mut self.periods {
            None => self.periods = Some([next; 2]),
            Some(periods) if is_idle => *periods = [next; 2],
            Some([latest, _]) if now.saturating_sub(latest.from) < PERIOD => {}
            Some(periods) => *periods = [next, periods[0]],
        }
    }

    /// Returns the accepted requests per second up to the end of a pause, or `None` if only a few were accepted.
    pub(super) fn rate(&self, progress: Progress, paused_at: u64, pause: u64) -> Option<f64> {
        let rate = |period: Period| {
            let accepted = progress.accepted.saturating_sub(period.accepted);
            let duration = paused_at.saturating_sub(period.from).saturating_add(pause);
            (accepted >= START_RUN.saturating_mul(progress.each))
                .then(|| accepted as f64 * SECOND as f64 / duration.max(1) as f64)
        };
        self.periods.into_iter().flatten().filter_map(rate).reduce(f64::max)
    }
}

/// After this many cuts by 503s without a complete run between them, or this many failed probes of one pause, the next
/// 503 shows an outage. After these cuts, the rate has fallen to about an eighth.
const MOST_OUTAGE_CUTS: u32 = 6;
/// The learner ignores 503s for this time after it has detected an outage.
pub(super) const OUTAGE: u64 = 60 * SECOND;

/// Distinguishes an outage from throttling: both may respond with a 503.
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
