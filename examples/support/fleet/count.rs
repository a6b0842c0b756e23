use std::time::Duration;

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    test_util::{self, Arrivals},
};

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

    /// As exactly as it is known when each arrived.
    pub(crate) fn times(&self) -> Arrivals {
        let time = |arrival: &Arrival| test_util::Arrival::between(left(arrival), arrival.at);
        self.arrivals.iter().map(time).collect()
    }

    pub(crate) fn arrivals(&self) -> impl Iterator<Item = Arrival> {
        self.arrivals.iter().copied()
    }

    pub(crate) fn of(&self, process: usize) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.process == process).count()
    }

    /// Arrivals that the quota does not allow: with each of them a window, both of its ends counted, holds more than
    /// the limit, whenever on their way they arrived.
    pub(crate) fn violations(&self) -> usize {
        self.spans().filter(|span| *span <= self.quota.window()).count()
    }

    /// The shortest time in which one request more than the limit arrived. The excess over the window is the unused part
    /// of margin and hold.
    pub(crate) fn closest(&self) -> Option<Duration> {
        self.spans().min()
    }

    /// The most that certainly arrived in any window.
    pub(crate) fn fullest(&self) -> u64 {
        self.times().most_in(self.quota.window())
    }

    fn spans(&self) -> impl Iterator<Item = Duration> {
        let more = self.quota.limit() as usize + 1;
        self.arrivals.windows(more).map(|some| {
            let first = some.iter().map(left).min();
            some.last().zip(first).map_or(Duration::ZERO, |(last, first)| last.at - first)
        })
    }
}

fn left(arrival: &Arrival) -> Instant {
    arrival.at.checked_sub(arrival.way).unwrap_or(arrival.at)
}
