use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Adaptive, LocalLimiter, PacedWindow, PermitRequest, RateLimitLayer, SelectLimiter, SlidingWindow,
    TokenBucket, algorithm::Algorithm,
};
use crate::{
    config::text::{List, Written},
    policy::Quota,
};

/// Configures a limiter and its [`RateLimitLayer`] in a file. In code, use the setters of the limiter and the layer
/// instead.
///
/// | field | default |
/// |---|---|
/// | `quota` | that of the preset, otherwise none. A quota such as `100/60s`, or a list of quotas that apply at once. `[]` removes the quota of a preset |
/// | `initial_burst` | the quota's burst, or the whole limit of a [`SlidingWindow`]. The number of permits that are available at the start |
/// | `max_wait` | none, so a call may wait until its deadline |
/// | `max_queue` | 10,000 waiters |
///
/// In a file, a quota has the text format that `str::parse` accepts for a [`Quota`]. The defaults of its burst and
/// margin are those of [`Quota::new`].
///
/// ```
/// use tower_outbound::limit::{RateLimitConfig, RateLimitLayer};
///
/// let config: RateLimitConfig = toml::from_str("quota = '10/1s'\nmax_wait = '5s'")?;
/// let layer = RateLimitLayer::from_config(config.token_bucket(), &config);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitConfig {
    quota: Option<List<Quota>>,
    initial_burst: Option<u32>,
    max_wait: Option<Written<Duration>>,
    max_queue: usize,
}

impl Default for RateLimitConfig {
    fn default() -> Self {
        let max_queue = PermitRequest::DEFAULT_MAX_QUEUE;
        Self { quota: None, initial_burst: None, max_wait: None, max_queue }
    }
}

impl RateLimitConfig {
    /// Sets `quotas` if the configuration has no `quota` field.
    pub(crate) fn or_quotas(mut self, quotas: &[Quota]) -> Self {
        self.quota.get_or_insert_with(|| List(quotas.to_vec()));
        self
    }

    /// Returns the quotas.
    pub fn quotas(&self) -> &[Quota] {
        self.quota.as_ref().map_or(&[], |quotas| &quotas.0)
    }

    pub(crate) fn initial_burst(&self) -> Option<u32> {
        self.initial_burst
    }

    /// Creates a limiter that spreads the whole quota over the window. The limiter is unlimited if there is no quota.
    pub fn paced_window(&self) -> PacedWindow {
        self.limiter()
    }

    /// Creates a limiter that spreads requests over the window. Its memory use does not depend on the limit. The
    /// limiter is unlimited if there is no quota.
    pub fn token_bucket(&self) -> TokenBucket {
        self.limiter()
    }

    /// Creates a limiter that learns the rate of the server, with the quotas as its ceiling.
    pub fn adaptive(&self) -> Adaptive {
        self.limiter()
    }

    /// Creates a limiter that grants the whole quota in any pattern. The limiter is unlimited if there is no quota.
    pub fn sliding_window(&self) -> SlidingWindow {
        self.limiter()
    }

    fn limiter<A: Algorithm>(&self) -> LocalLimiter<A> {
        LocalLimiter::configured(self.quotas(), self.initial_burst)
    }
}

impl<L: SelectLimiter> RateLimitLayer<L> {
    /// Creates a layer over `limiter`, with `max_wait` and `max_queue` from `config`.
    pub fn from_config(limiter: L, config: &RateLimitConfig) -> Self {
        let layer = Self::new(limiter).with_max_queue(config.max_queue);
        match config.max_wait {
            Some(max_wait) => layer.with_max_wait(max_wait.0),
            None => layer,
        }
    }
}
