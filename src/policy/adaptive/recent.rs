//! Counts the requests that a server accepted recently.

use super::observation::{Progress, SECOND};

/// The number of accepted requests that a run of the slow start needs, and that an estimate of the rate needs.
pub(super) const START_RUN: u64 = 10;

/// The length of a period. An estimate covers only the current and the previous period, so that an earlier idle time
/// does not lower it.
const PERIOD: u64 = 60 * SECOND;

/// An idle time, which is also the time after which the slow start begins again: 2 s in nanoseconds.
pub(crate) const IDLE: u64 = 2 * SECOND;

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
