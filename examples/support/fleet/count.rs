use std::time::Duration;

use tokio::time::Instant;
use tower_outbound::Quota;

use super::Arrival;

/// What arrived, against the quota.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    arrivals: Vec<Arrival>,
    quota: Quota,
}

impl Count {
    pub(crate) fn new(arrivals: Vec<Arrival>, quota: Quota) -> Self {
        Self { arrivals, quota }
    }

    /// What arrived from `start` on, before `end`.
    pub(crate) fn between(&self, start: Instant, end: Instant) -> Self {
        let inside = self.arrivals.iter().filter(|arrival| start <= arrival.at && arrival.at < end);
        Self { arrivals: inside.copied().collect(), quota: self.quota }
    }

    pub(crate) fn total(&self) -> usize {
        self.arrivals.len()
    }

    pub(crate) fn times(&self) -> impl Iterator<Item = Instant> {
        self.arrivals.iter().map(|arrival| arrival.at)
    }

    pub(crate) fn arrivals(&self) -> impl Iterator<Item = Arrival> {
        self.arrivals.iter().copied()
    }

    pub(crate) fn of(&self, process: usize) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.process == process).count()
    }

    /// Arrivals that the quota does not allow: with each of them a window, both of its ends counted, holds more than
    /// the limit.
    pub(crate) fn violations(&self) -> usize {
        self.spans().filter(|span| *span <= self.quota.window()).count()
    }

    /// The shortest time in which one more than the limit arrived: by how much it is longer than the window is what
    /// was left of guard and hold.
    pub(crate) fn closest(&self) -> Option<Duration> {
        self.spans().min()
    }

    /// The most in any window.
    pub(crate) fn fullest(&self) -> usize {
        let mut first = 0;
        let most = self.arrivals.iter().enumerate().map(|(last, arrival)| {
            while arrival.at - self.arrivals[first].at > self.quota.window() {
                first += 1;
            }
            last + 1 - first
        });
        most.max().unwrap_or(0)
    }

    fn spans(&self) -> impl Iterator<Item = Duration> {
        let more = self.quota.limit() as usize + 1;
        self.arrivals.windows(more).map(|some| some[some.len() - 1].at - some[0].at)
    }
}
