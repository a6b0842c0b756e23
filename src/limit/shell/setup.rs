//! The parts of a limiter that never change. The keys of a `Keyed` with the same quotas share one setup.

use super::clock::Clock;
use crate::{
    limit::core::{Core, CoreSettings, Rule},
    policy::Quota,
};

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) quotas: Box<[Quota]>,
    pub(crate) settings: CoreSettings,
}

impl Setup {
    pub(crate) fn new(quotas: Box<[Quota]>, rule: Rule) -> Self {
        Self { clock: Clock::tokio(), quotas, settings: CoreSettings::new(rule) }
    }

    /// Creates the core when a request first needs the lock, so that an unused key takes little memory.
    pub(super) fn core(&self) -> Core {
        Core::new(&self.quotas, self.settings)
    }

    pub(super) fn learns(&self) -> bool {
        self.settings.rule == Rule::Learned
    }

    /// Returns whether the limiter counts the requests in flight.
    #[inline]
    pub(super) fn counts(&self) -> bool {
        self.settings.max_in_flight.is_some()
    }

    /// Returns whether a limiter with this setup can use the other one. A limiter that starts with fewer permits
    /// refills them from its own start.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.quotas == other.quotas
            && self.settings == other.settings
            && self.settings.initial_burst.is_none()
            && self.clock.has_same_source(&other.clock)
    }
}
