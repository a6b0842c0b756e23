use std::time::Duration;

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    test_util::{self, Arrivals},
};

use super::Arrival;

/// The requests that arrived at the counting server, and the quota that applies to them.
#[derive(Debug, Clone)]
pub(crate) struct ArrivalLog {
    arrivals: Vec<Arrival>,
    quota: Quota,
}

impl ArrivalLog {
    pub(crate) fn new(arrivals: Vec<Arrival>, quota: Quota) -> Self {
        Self { arrivals, quota }
    }

    /// Returns the arrivals from `start` up to but not including `end`.
    pub(crate) fn between(&self, start: Instant, end: Instant) -> Self {
        let inside = self.arrivals.iter().filter(|arrival| start <= arrival.at && arrival.at < end);
        Self { arrivals: inside.copied().collect(), quota: self.quota }
    }

    pub(crate) fn total(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns the arrivals, each with the interval in which the request arrived.
    pub(crate) fn times(&self) -> Arrivals {
        let time = |arrival: &Arrival| test_util::Arrival::between(sent_at(arrival), arrival.at);
        self.arrivals.iter().map(time).collect()
    }

    pub(crate) fn arrivals(&self) -> impl Iterator<Item = Arrival> {
        self.arrivals.iter().copied()
    }

    pub(crate) fn count_of(&self, process: usize) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.process == process).count()
    }

    /// Returns the number of arrivals that certainly exceed the quota.
    ///
    /// A request may have arrived at any time between its grant and its recorded arrival. Delays in the network
    /// therefore do not count as violations. Both ends of a window belong to the window.
    pub(crate) fn violations(&self) -> usize {
        self.spans().filter(|span| *span <= self.quota.window()).count()
    }

    /// Returns the shortest interval that contains one request more than the limit.
    ///
    /// If the returned interval is longer than the quota's window, the difference is the unused part of the margin and
    /// of the hold.
    pub(crate) fn shortest_excess_span(&self) -> Option<Duration> {
        self.spans().min()
    }

    /// Returns the largest number of requests that certainly arrived in one window.
    pub(crate) fn most_in_window(&self) -> u64 {
        self.times().most_in(self.quota.window())
    }

    fn spans(&self) -> impl Iterator<Item = Duration> {
        let excess = self.quota.limit() as usize + 1;
        self.arrivals.windows(excess).map(|group| {
            let first = group.iter().map(sent_at).min();
            group.last().zip(first).map_or(Duration::ZERO, |(last, first)| last.at - first)
        })
    }
}

/// Returns the time when the limiter granted the request's permit.
fn sent_at(arrival: &Arrival) -> Instant {
    arrival.at.checked_sub(arrival.transit).unwrap_or(arrival.at)
}
