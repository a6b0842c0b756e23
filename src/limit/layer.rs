use std::time::Duration;

use tower_layer::Layer;

use super::{Ask, Limiter, RateLimit};

/// Makes a request wait for its permit, or refuses it at once where the wait can't fit.
///
/// # Default
///
/// Any wait that the call's deadline allows; at most 10,000 requests waiting.
///
/// # Clone
///
/// Clones, and the services that they make, share the limiter.
#[derive(Debug, Clone)]
pub struct RateLimitLayer<L> {
    limiter: L,
    bounds: Ask,
}

impl<L> RateLimitLayer<L> {
    /// Every request takes a permit from `limiter`.
    pub fn new(limiter: L) -> Self {
        Self { limiter, bounds: Ask::default() }
    }

    /// The limiter.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// Refuses a request that would wait longer than `max_wait`; `Duration::ZERO` sheds what can't go at once.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.bounds.max_wait = Some(max_wait);
        self
    }

    /// Refuses a request when `max_queue` others are waiting already. 10,000 by default.
    pub fn with_max_queue(mut self, max_queue: usize) -> Self {
        self.bounds.max_queue = max_queue;
        self
    }

    /// The same bounds before another limiter.
    pub fn with_limiter<M>(self, limiter: M) -> RateLimitLayer<M> {
        RateLimitLayer { limiter, bounds: self.bounds }
    }
}

impl<S, L: Limiter> Layer<S> for RateLimitLayer<L> {
    type Service = RateLimit<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.limiter.clone(), self.bounds)
    }
}
