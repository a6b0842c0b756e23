#[cfg(feature = "quanta")]
use std::sync::OnceLock;
use std::time::Duration;

use crate::{
    clock::{self, Instant},
    policy::nanos,
};

/// A limiter's clock, which counts nanoseconds since the limiter was created.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    origin: Instant,
    #[cfg(feature = "quanta")]
    quanta: Option<(&'static quanta::Clock, u64)>,
}

impl Clock {
    pub(crate) fn tokio() -> Self {
        Self {
            origin: clock::now(),
            #[cfg(feature = "quanta")]
            quanta: None,
        }
    }

    #[cfg(feature = "quanta")]
    pub(crate) fn quanta() -> Self {
        // All limiters share one clock, because creating a clock takes tens of microseconds on a virtual machine.
        static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
        let clock = CLOCK.get_or_init(quanta::Clock::new);
        let start = clock.raw();
        Self { quanta: Some((clock, start)), ..Self::tokio() }
    }

    pub(crate) fn has_same_source(&self, other: &Self) -> bool {
        #[cfg(feature = "quanta")]
        if self.quanta.is_some() != other.quanta.is_some() {
            return false;
        }
        let _ = other;
        true
    }

    /// Returns by how much a reading of the clock may be earlier than a previous one of another thread. Quanta's clock
    /// was up to 715 ns earlier.
    pub(crate) fn skew(&self) -> u64 {
        #[cfg(feature = "quanta")]
        if self.quanta.is_some() {
            return 1_024;
        }
        0
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        #[cfg(feature = "quanta")]
        if let Some((clock, start)) = &self.quanta {
            return clock.delta_as_nanos(*start, clock.raw());
        }
        nanos(clock::now().saturating_duration_since(self.origin))
    }

    /// Converts a time of this clock to an `Instant` of tokio's timers.
    pub(crate) fn timer(&self, at: u64) -> Instant {
        let exact = self.origin.checked_add(Duration::from_nanos(at));
        #[cfg(feature = "quanta")]
        let exact = exact.filter(|_| self.quanta.is_none());
        // `clock::after` limits the wait, so it counts from the present. Counted from the origin, a limited time could
        // lie in the past, and its timer would wake a waiter without end.
        let wait = || Duration::from_nanos(at.saturating_sub(self.now()));
        exact.unwrap_or_else(|| clock::after(clock::now(), wait()))
    }

    /// Converts an `Instant` of tokio's clock to a time of this clock.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        #[cfg(feature = "quanta")]
        if self.quanta.is_some() {
            return self.now().saturating_add(nanos(instant.saturating_duration_since(clock::now())));
        }
        nanos(instant.saturating_duration_since(self.origin))
    }

    /// Converts a past time of this clock to an `Instant`, without reading a clock.
    /// [`since_origin`](Self::since_origin) is its exact inverse.
    #[inline]
    pub(crate) fn stamp(&self, at: u64) -> Instant {
        self.origin.checked_add(Duration::from_nanos(at)).unwrap_or(self.origin)
    }

    pub(crate) fn since_origin(&self, stamp: Instant) -> u64 {
        nanos(stamp.saturating_duration_since(self.origin))
    }
}
