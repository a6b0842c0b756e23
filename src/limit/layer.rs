use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{PermitRequest, RateLimit, SelectLimiter};
use crate::call::RequestHead;

/// Makes a request wait for its permit, or refuses it at once where the wait can't fit.
///
/// # Default
///
/// Any wait that the call's deadline allows; at most 10,000 requests waiting.
///
/// # Clone
///
/// Clones, and the services that they make, share the limiter.
#[derive(Clone)]
pub struct RateLimitLayer<L> {
    pub(super) limiter: L,
    pub(super) bounds: PermitRequest,
    pub(super) cost: Option<CostOf>,
    pub(super) heeds: Option<Heeds>,
}

/// Says whose answers count.
pub(super) type Heeds = Arc<dyn Fn(RequestHead<'_>) -> bool + Send + Sync>;

/// Draws the cost of a request from its head.
pub(super) type CostOf = Arc<dyn Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync>;

impl<L> RateLimitLayer<L> {
    /// Every request takes its permits from `limiter`, or from the one of its key in a
    /// [`Keyed`](super::Keyed).
    pub fn new(limiter: L) -> Self
    where
        L: SelectLimiter,
    {
        Self { limiter, bounds: PermitRequest::default(), cost: None, heeds: None }
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

    /// Draws the number of permits that a request takes from its head. By default it is the
    /// [`PermitCost`](super::PermitCost) in its extensions, and 1 where there is none.
    pub fn with_cost(mut self, cost: impl Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Heeds what answers say of the server's limits only for these requests. By default for all: whoever sends
    /// requests to several servers through one limiter would let one of them stop the others.
    pub fn with_feedback_from(
        mut self,
        heeds: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.heeds = Some(Arc::new(heeds));
        self
    }

    /// The same bounds before another limiter.
    pub fn with_limiter<M>(self, limiter: M) -> RateLimitLayer<M> {
        RateLimitLayer { limiter, bounds: self.bounds, cost: self.cost, heeds: self.heeds }
    }
}

impl<L: fmt::Debug> fmt::Debug for RateLimitLayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.limiter)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

impl<S, L: SelectLimiter> Layer<S> for RateLimitLayer<L> {
    type Service = RateLimit<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.clone()))
    }
}
