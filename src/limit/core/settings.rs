//! The settings of a core.

use std::{num::NonZeroU32, time::Duration};

use super::Rule;
use crate::{config::InvalidConfig, policy::nanos};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreSettings {
    pub rule: Rule,
    /// Whether the remaining permits that the server reports limit the grants even if the limiter has a quota.
    pub obeys_remaining: bool,
    /// The share of each lower priority, in percent of all permits. `None` for the default.
    pub lower_share: Option<u32>,
    /// The maximum number of permits that are available at the start. `None` for the burst, or for the whole limit.
    pub initial_burst: Option<u32>,
    pub pauses: PauseSettings,
    pub max_in_flight: Option<NonZeroU32>,
    /// How long a cancelled request still counts as in flight, in nanoseconds.
    pub hold_after_cancel: u64,
}

impl CoreSettings {
    /// The default settings of a limiter without a quota, which learns.
    pub const DEFAULT: Self = Self::new(Rule::Learned);

    /// The default settings of a limiter with this rule.
    pub const fn new(rule: Rule) -> Self {
        let pauses = PauseSettings::DEFAULT;
        Self {
            rule,
            obeys_remaining: false,
            lower_share: None,
            initial_burst: None,
            pauses,
            max_in_flight: None,
            hold_after_cancel: 0,
        }
    }

    /// Returns the name and the value of the first setting that is neither the default nor that of `other`.
    pub fn first_unlike(&self, other: &Self) -> Option<(&'static str, String)> {
        let texts = |settings: &Self| {
            let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
            let time = |nanos| format!("{:?}", Duration::from_nanos(nanos));
            [
                ("initial burst", number(settings.initial_burst)),
                ("longest pause", time(settings.pauses.longest)),
                ("throttle pause", time(settings.pauses.throttled())),
                ("max in flight", number(settings.max_in_flight.map(NonZeroU32::get))),
                ("hold after cancel", time(settings.hold_after_cancel)),
            ]
        };
        let others = [&Self::DEFAULT, other].map(texts);
        texts(self).into_iter().find(|own| others.iter().all(|other| !other.contains(own)))
    }
}

/// The bounds of the pauses that responses cause. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseSettings {
    /// The longest time without a request, if the server states a delay.
    pub longest: u64,
    /// The first pause after a throttled response without a delay. Zero for none. `None` for the default.
    pub throttled: Option<u64>,
}

impl PauseSettings {
    pub const DEFAULT: Self = Self { longest: 3_600_000_000_000, throttled: None };
    /// The longest pause after a throttled response without a delay.
    pub(super) const LONGEST_THROTTLED: Duration = Duration::from_secs(300);

    /// Returns the first pause of a limiter that does not learn: 1 s by default.
    pub fn throttled(&self) -> u64 {
        self.throttled.unwrap_or(1_000_000_000)
    }

    /// Returns the shortest pause of a limiter that learns. By default, the learner chooses it.
    pub fn least(&self) -> u64 {
        self.throttled.unwrap_or(0)
    }

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
        Ok(Self { throttled: Some(nanos(pause)), ..self })
    }
}
