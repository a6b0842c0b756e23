use std::time::Duration;

use super::{part::settings, text};
use crate::{
    error::InvalidConfig,
    limit::{RateLimitLayer, Select, SlidingWindow, TokenBucket},
    policy::Quota,
    preset::Preset,
};

settings! {
    /// How many requests may leave, and how they wait: [`RateLimitLayer`] and its limiter.
    ///
    /// A preset's limiter is a [`TokenBucket`], unless code gives it another by [`Preset::with_limiter`]; whoever
    /// composes layers chooses by [`token_bucket`](Self::token_bucket) or [`sliding_window`](Self::sliding_window).
    pub struct LimitSettings {
        /// One quota or a list of them, which then hold at once: `100/60s`, or `100/60s, burst 10, guard 1s`. The preset's
        /// by default; an empty list is no quota. Whatever guard a quota spells out is its guard, `guard 0s` as well.
        #[serde(with = "text::list")]
        pub quota: Option<Vec<Quota>>,
        /// What widens the window of each quota that spells out none, and of the preset's own quotas. [`Preset::GUARD`] by
        /// default, or the window where that is shorter; `0s` for none. A quota's own guard goes before it.
        #[serde(with = "text")]
        pub guard: Option<Duration>,
        /// The longest wait for a permit: [`RateLimitLayer::with_max_wait`]. As long as the deadline allows by default.
        #[serde(with = "text")]
        pub max_wait: Option<Duration>,
        /// How many may wait: [`RateLimitLayer::with_max_queue`]. 10,000 by default.
        pub max_queue: Option<usize>,
        /// Whether the limiter has nothing to give at first: [`TokenBucket::starting_empty`]. Not by default.
        pub starting_empty: Option<bool>,
    }
}

impl LimitSettings {
    /// The quotas, each with its own guard, else with that of these settings, else with the default; none where none is
    /// given.
    ///
    /// # Errors
    ///
    /// As [`Quota::with_guard`].
    pub fn quotas(&self) -> Result<Vec<Quota>, InvalidConfig> {
        let quotas = self.quota.iter().flatten().copied();
        quotas
            .map(|quota| if quota.own_guard().is_some() { Ok(quota) } else { self.guarded(quota) })
            .collect()
    }

    fn guarded(&self, quota: Quota) -> Result<Quota, InvalidConfig> {
        match self.guard {
            Some(guard) => quota.with_guard(guard).map_err(|error| error.within("guard")),
            None => {
                quota.with_guard(Preset::GUARD.min(quota.window())).map_err(|error| error.within("quota"))
            }
        }
    }

    /// A limiter that spreads the requests.
    ///
    /// # Errors
    ///
    /// As [`quotas`](Self::quotas).
    pub fn token_bucket(&self) -> Result<TokenBucket, InvalidConfig> {
        let limiter = TokenBucket::all_of(self.quotas()?);
        Ok(if self.starting_empty == Some(true) { limiter.starting_empty() } else { limiter })
    }

    /// A limiter that lets the whole quota go as it comes.
    ///
    /// # Errors
    ///
    /// As [`quotas`](Self::quotas).
    pub fn sliding_window(&self) -> Result<SlidingWindow, InvalidConfig> {
        let limiter = SlidingWindow::all_of(self.quotas()?);
        Ok(if self.starting_empty == Some(true) { limiter.starting_empty() } else { limiter })
    }

    /// The layer before a limiter, with the bounds of the wait.
    pub fn layer<L: Select>(&self, limiter: L) -> RateLimitLayer<L> {
        self.bound(RateLimitLayer::new(limiter))
    }

    pub(super) fn preset(&self, mut preset: Preset) -> Result<Preset, InvalidConfig> {
        if self.quota.is_some() {
            preset = preset.with_quotas(self.quotas()?);
        } else if self.guard.is_some() {
            // The preset's guard is a default, too.
            let quotas: Result<Vec<_>, _> =
                preset.quotas().iter().map(|quota| self.guarded(*quota)).collect();
            preset = preset.with_quotas(quotas?);
        }
        if self.starting_empty == Some(true) {
            let bucket = TokenBucket::all_of(preset.quotas().iter().copied());
            preset = preset.with_limiter(bucket.starting_empty());
        }
        Ok(preset.with_limit(|layer| self.bound(layer)))
    }

    fn bound<L>(&self, mut layer: RateLimitLayer<L>) -> RateLimitLayer<L> {
        if let Some(max_wait) = self.max_wait {
            layer = layer.with_max_wait(max_wait);
        }
        if let Some(max_queue) = self.max_queue {
            layer = layer.with_max_queue(max_queue);
        }
        layer
    }
}
