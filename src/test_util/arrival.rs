use crate::clock::Instant;

/// An arrival: its time, as exactly as it is known, and the permits that it costs.
///
/// An arrival from an instant costs one permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arrival {
    pub(super) earliest: Instant,
    pub(super) latest: Instant,
    pub(super) permits: u32,
}

impl Arrival {
    /// Creates an arrival at an unknown time between the two, for example before and after a limiter's grant under real
    /// threads. It counts only in windows that contain both times, so that no window counts too many.
    ///
    /// # Panics
    ///
    /// Panics if `latest` is before `earliest`.
    #[track_caller]
    pub fn between(earliest: Instant, latest: Instant) -> Self {
        assert!(earliest <= latest, "an arrival ends {:?} before it began", earliest - latest);
        Self { earliest, latest, permits: 1 }
    }

    /// Sets the number of permits that it costs.
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
