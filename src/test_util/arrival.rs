use crate::clock::Instant;

/// The arrival of a request: its time, or the range in which this time lies, and the number of permits that the request
/// costs.
///
/// An arrival that is created from an `Instant` costs one permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arrival {
    pub(super) earliest: Instant,
    pub(super) latest: Instant,
    pub(super) permits: u32,
}

impl Arrival {
    /// Creates an arrival at an unknown time between two known times, such as the times before and after a limiter's
    /// grant on another thread. The arrival counts only in windows that contain both times, so that no window counts
    /// too many arrivals.
    ///
    /// # Panics
    ///
    /// Panics if `latest` is before `earliest`.
    #[track_caller]
    pub fn between(earliest: Instant, latest: Instant) -> Self {
        assert!(
            earliest <= latest,
            "invalid arrival: the latest time is {:?} before the earliest time",
            earliest - latest
        );
        Self { earliest, latest, permits: 1 }
    }

    /// Sets the number of permits that the arrival costs.
    #[must_use]
    pub fn with_permits(mut self, permits: u32) -> Self {
        self.permits = permits;
        self
    }
}

impl From<Instant> for Arrival {
    fn from(at: Instant) -> Self {
        Self { earliest: at, latest: at, permits: 1 }
    }
}
