#[cfg(feature = "quanta")]
use std::sync::OnceLock;

use crate::clock::{self, Instant};

/// A limiter's clock, in nanoseconds since the limiter was made, and its way back to the clock of the timers.
#[derive(Debug, Clone)]
pub(super) struct Ticker {
    origin: Instant,
    #[cfg(feature = "quanta")]
    fast: Option<(&'static quanta::Clock, u64)>,
    #[cfg(outbound_loom)]
    still: bool,
}

impl Ticker {
    pub(super) fn tokio() -> Self {
        Self {
            origin: clock::now(),
            #[cfg(feature = "quanta")]
            fast: None,
            #[cfg(outbound_loom)]
            still: false,
        }
    }

    /// Stands still, so that a model takes the same way each time.
    #[cfg(all(test, outbound_loom))]
    pub(super) fn still() -> Self {
        Self { still: true, ..Self::tokio() }
    }

    #[cfg(feature = "quanta")]
    pub(super) fn fast() -> Self {
        // One for all: to make one asks the processor what it can do, tens of microseconds on a virtual machine.
        static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
        let clock = CLOCK.get_or_init(quanta::Clock::new);
        let start = clock.raw();
        Self { fast: Some((clock, start)), ..Self::tokio() }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        #[cfg(outbound_loom)]
        if self.still {
            return 1;
        }
        #[cfg(feature = "quanta")]
        if let Some((clock, start)) = &self.fast {
            return clock.delta_as_nanos(*start, clock.raw());
        }
        super::nanos(clock::now().saturating_duration_since(self.origin))
    }

    /// The moment at which a timer has to fire so that `at` has come on this clock.
    pub(super) fn instant(&self, at: u64) -> Instant {
        let at = std::time::Duration::from_nanos(at);
        #[cfg(feature = "quanta")]
        if self.fast.is_some() {
            let now = std::time::Duration::from_nanos(self.now());
            return clock::after(clock::now(), at.saturating_sub(now));
        }
        clock::after(self.origin, at)
    }

    /// A moment on tokio's clock, on this one.
    pub(super) fn at(&self, instant: Instant) -> u64 {
        #[cfg(feature = "quanta")]
        if self.fast.is_some() {
            return self.now().saturating_add(super::nanos(instant.saturating_duration_since(clock::now())));
        }
        super::nanos(instant.saturating_duration_since(self.origin))
    }
}
