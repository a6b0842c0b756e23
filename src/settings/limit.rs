use std::time::Duration;

use super::{part::settings, text};
use crate::{
    limit::{RateLimitLayer, SelectLimiter, SlidingWindow, TokenBucket},
    policy::Quota,
    preset::StackBuilder,
};

settings! {
    /// Settings of the quota and of the queue in front of it: [`RateLimitLayer`] and its limiter.
    ///
    /// A preset uses a [`TokenBucket`] unless code replaces it by [`StackBuilder::with_limiter`]. A stack of single layers
    /// takes [`token_bucket`](Self::token_bucket) or [`sliding_window`](Self::sliding_window).
    pub struct LimitSettings {
        /// One quota, or a list of quotas that hold at once, such as `100/60s` or `100/60s, burst 10, margin 1s`.
        /// Default: the quota of the preset. An empty list means unlimited.
        ///
        /// `parse` reads the same text, so a file and code give the same quota, default burst and margin included. See
        /// [`Quota`] for what the margin covers.
        #[serde(with = "text::list")]
        pub quota: Option<Vec<Quota>>,
        /// The longest wait for a permit: [`RateLimitLayer::with_max_wait`]. Default: until the deadline of the call.
        #[serde(with = "text")]
        pub max_wait: Option<Duration>,
        /// The largest number of waiters: [`RateLimitLayer::with_max_queue`]. Default: 10,000.
        pub max_queue: Option<usize>,
        /// Whether the limiter starts without permits: [`TokenBucket::with_initial_burst`]. Default: `false`.
        pub starting_empty: Option<bool>,
    }
}

impl LimitSettings {
    /// Returns a limiter that spreads the requests over the window. Unlimited if `quota` is not set.
    pub fn token_bucket(&self) -> TokenBucket {
        let limiter = TokenBucket::all_of(self.quota.iter().flatten().copied());
        if self.starting_empty == Some(true) { limiter.with_initial_burst(0) } else { limiter }
    }

    /// Returns a limiter that grants the whole quota in any pattern. Unlimited if `quota` is not set.
    pub fn sliding_window(&self) -> SlidingWindow {
        let limiter = SlidingWindow::all_of(self.quota.iter().flatten().copied());
        if self.starting_empty == Some(true) { limiter.with_initial_burst(0) } else { limiter }
    }

    /// Returns the layer over `limiter`, with the bounds of the wait from these settings.
    pub fn layer<L: SelectLimiter>(&self, limiter: L) -> RateLimitLayer<L> {
        self.bound(RateLimitLayer::new(limiter))
    }

    pub(super) fn preset(&self, mut preset: StackBuilder) -> StackBuilder {
        if let Some(quotas) = &self.quota {
            preset = preset.with_quotas(quotas.iter().copied());
        }
        if self.starting_empty == Some(true) {
            let bucket = TokenBucket::all_of(preset.quotas().iter().copied());
            preset = preset.with_limiter(bucket.with_initial_burst(0));
        }
        preset.with_limit(|layer| self.bound(layer))
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
