use std::time::Duration;

use super::{part::settings, text};
use crate::{
    error::InvalidConfig,
    limit::{RateLimitLayer, Select, SlidingWindow, TokenBucket},
    policy::Quota,
    preset::Preset,
};

settings! {
    /// Settings of the quota and of the queue in front of it: [`RateLimitLayer`] and its limiter.
    ///
    /// A preset uses a [`TokenBucket`] unless code replaces it by [`Preset::with_limiter`]. A stack of single layers
    /// takes [`token_bucket`](Self::token_bucket) or [`sliding_window`](Self::sliding_window).
    pub struct LimitSettings {
        /// One quota, or a list of quotas that hold at once, such as `100/60s` or `100/60s, burst 10, margin 1s`.
        /// Default: the quota of the preset. An empty list means unlimited.
        ///
        /// `parse` reads the same text, so a file and code give the same quota, default burst and margin included.
        #[serde(with = "text::list")]
        pub quota: Option<Vec<Quota>>,
        /// Replaces the margin of every quota, whether it comes from `quota` or from the preset. `0s` sets no margin.
        /// Default: each quota keeps its own margin. See [`Quota`] for what the margin covers.
        #[serde(with = "text")]
        pub margin: Option<Duration>,
        /// The longest wait for a permit: [`RateLimitLayer::with_max_wait`]. Default: until the deadline of the call.
        #[serde(with = "text")]
        pub max_wait: Option<Duration>,
        /// The largest number of waiters: [`RateLimitLayer::with_max_queue`]. Default: 10,000.
        pub max_queue: Option<usize>,
        /// Whether the limiter starts without permits: [`TokenBucket::starting_empty`]. Default: `false`.
        pub starting_empty: Option<bool>,
    }
}

impl LimitSettings {
    /// Returns the quotas of these settings, with [`margin`](Self::margin) applied. Empty if `quota` is not set.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Quota::with_margin`].
    pub fn quotas(&self) -> Result<Vec<Quota>, InvalidConfig> {
        self.with_margin(self.quota.as_deref().unwrap_or_default())
    }

    fn with_margin(&self, quotas: &[Quota]) -> Result<Vec<Quota>, InvalidConfig> {
        let margin = |quota: &Quota| self.margin.map_or(Ok(*quota), |margin| quota.with_margin(margin));
        quotas.iter().map(margin).collect::<Result<_, _>>().map_err(|error| error.within("margin"))
    }

    /// Returns a limiter that spreads the requests over the window.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`quotas`](Self::quotas).
    pub fn token_bucket(&self) -> Result<TokenBucket, InvalidConfig> {
        let limiter = TokenBucket::all_of(self.quotas()?);
        Ok(if self.starting_empty == Some(true) { limiter.starting_empty() } else { limiter })
    }

    /// Returns a limiter that grants the whole quota in any pattern.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`quotas`](Self::quotas).
    pub fn sliding_window(&self) -> Result<SlidingWindow, InvalidConfig> {
        let limiter = SlidingWindow::all_of(self.quotas()?);
        Ok(if self.starting_empty == Some(true) { limiter.starting_empty() } else { limiter })
    }

    /// Returns the layer over `limiter`, with the bounds of the wait from these settings.
    pub fn layer<L: Select>(&self, limiter: L) -> RateLimitLayer<L> {
        self.bound(RateLimitLayer::new(limiter))
    }

    pub(super) fn preset(&self, mut preset: Preset) -> Result<Preset, InvalidConfig> {
        if self.quota.is_some() {
            preset = preset.with_quotas(self.quotas()?);
        } else if self.margin.is_some() {
            let quotas = self.with_margin(preset.quotas())?;
            preset = preset.with_quotas(quotas);
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
