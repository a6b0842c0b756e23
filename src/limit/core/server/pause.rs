//! The pause of a limiter.
//!
//! - A delay that the server states is kept in full, up to a longest pause. A longer delay is a *long pause*: one
//!   request leaves after each longest pause, as a probe. The long pause ends when the server accepts a probe, or at
//!   the stated end.
//! - A throttled response that states no delay pauses a limiter with a quota for a short time. The time doubles with
//!   each further one, until the server accepts a request.

use std::time::Duration;

use crate::{config::InvalidConfig, policy::nanos};

/// The bounds of the pauses that responses cause. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseSettings {
    /// The longest time without a request, if the server states a delay.
    pub longest: u64,
    /// The first pause after a throttled response without a delay. Zero for none.
    pub throttled: u64,
}

impl PauseSettings {
    pub const DEFAULT: Self = Self { longest: 3_600_000_000_000, throttled: 1_000_000_000 };
    /// The longest pause after a throttled response without a delay.
    const LONGEST_THROTTLED: Duration = Duration::from_secs(300);

    pub fn with_longest(self, longest: Duration) -> Result<Self, InvalidConfig> {
        if longest.is_zero() {
            return Err(InvalidConfig::new("longest pause", "0ns", "more than zero"));
        }
        Ok(Self { longest: nanos(longest), ..self })
    }

    pub fn with_throttled(self, pause: Duration) -> Result<Self, InvalidConfig> {
        if pause > Self::LONGEST_THROTTLED {
            let expected = format!("at most {:?}", Self::LONGEST_THROTTLED);
            return Err(InvalidConfig::new("throttle pause", format!("{pause:?}"), expected));
        }
        Ok(Self { throttled: nanos(pause), ..self })
    }
}

/// A pause that a response began, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunPause {
    pub length: u64,
    /// The time until the first probe of a long pause.
    pub probe_after: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Pause {
    pub(crate) settings: PauseSettings,
    /// No request leaves before this time. In a long pause, this is the time of the next probe.
    pub(super) until: u64,
    /// The stated end of a long pause. Zero if there is none.
    pub(super) stated_until: u64,
    /// When the long pause began. A permit that was granted later is a probe.
    began_at: u64,
    /// The latest pause after a throttled response without a delay. Zero after an accepted response.
    throttled: u64,
    /// The end of that pause.
    throttled_until: u64,
    pub(crate) begun: Option<BegunPause>,
}

impl Pause {
    pub(super) const fn new(settings: PauseSettings) -> Self {
        Self {
            settings,
            until: 0,
            stated_until: 0,
            began_at: 0,
            throttled: 0,
            throttled_until: 0,
            begun: None,
        }
    }

    #[inline]
    pub(super) fn applies(&self) -> bool {
        self.until > 0 || self.is_long()
    }

    /// Returns whether the server stated a delay beyond the longest pause.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.stated_until > 0
    }

    /// Returns whether the limiter waits for an accepted response.
    #[inline]
    pub(crate) fn awaits_acceptance(&self) -> bool {
        self.throttled > 0 || self.is_long()
    }

    /// Returns whether no request may leave.
    pub(crate) fn is_on(&self, now: u64) -> bool {
        now < self.until
    }

    /// Returns the end of the pause, which is the stated end of a long pause.
    pub(crate) fn end(&self, now: u64) -> Option<u64> {
        Some(self.until.max(self.stated_until)).filter(|end| now < *end)
    }

    /// Returns when the next probe of a long pause may leave.
    pub(crate) fn probe_at(&self, now: u64) -> Option<u64> {
        (now < self.stated_until).then(|| self.until.max(now))
    }

    /// Returns whether a permit that was granted at `granted_at` is the probe of a long pause.
    pub(crate) fn is_probe(&self, granted_at: u64) -> bool {
        self.is_long() && granted_at > self.began_at
    }

    /// Extends the pause, but never shortens it. Returns whether it became longer.
    pub(super) fn extend(&mut self, until: u64, now: u64) -> bool {
        let is_longer = until > self.until.max(now);
        if is_longer {
            // Probes that have left do not end this pause.
            (self.until, self.began_at) = (until, now);
        }
        is_longer
    }

    /// Pauses until a time that the server stated, or until the first probe. Returns whether the pause became longer.
    pub(super) fn state(&mut self, until: u64, now: u64) -> bool {
        let probe_at = now.saturating_add(self.settings.longest);
        if until <= probe_at {
            return self.extend(until, now);
        }
        let is_longer = self.end(now).is_none_or(|end| end < until);
        if !self.is_long() {
            self.began_at = now;
            self.begun = Some(BegunPause { length: until - now, probe_after: Some(self.settings.longest) });
        }
        (self.until, self.stated_until) = (self.until.max(probe_at), self.stated_until.max(until));
        is_longer
    }

    /// Pauses after a throttled response without a delay to a request that was granted at `granted_at`. Returns whether
    /// the pause became longer.
    pub(crate) fn throttle(&mut self, granted_at: u64, now: u64) -> bool {
        let is_further = self.throttled > 0 && granted_at >= self.throttled_until;
        let begins = self.throttled == 0 || is_further;
        if self.throttled == 0 {
            self.throttled = self.settings.throttled;
        } else if is_further {
            self.throttled = self.throttled.saturating_mul(2).min(nanos(PauseSettings::LONGEST_THROTTLED));
        }
        self.throttled_until = now.saturating_add(self.throttled);
        let is_longer = self.extend(self.throttled_until, now);
        if begins && is_longer {
            self.begun = Some(BegunPause { length: self.throttled, probe_after: None });
        }
        is_longer
    }

    /// Records that the server accepted a request that was granted at `granted_at`.
    pub(crate) fn accept(&mut self, granted_at: u64) {
        if granted_at >= self.throttled_until {
            self.throttled = 0;
        }
    }

    /// Records that a probe leaves, and postpones the next one.
    pub(super) fn probe(&mut self, now: u64) {
        if self.is_long() {
            self.until = now.saturating_add(self.settings.longest).min(self.stated_until);
        }
    }

    pub(super) fn tidy(&mut self, now: u64) {
        if self.until <= now {
            self.until = 0;
        }
        if self.stated_until <= now {
            self.stated_until = 0;
        }
    }
}
