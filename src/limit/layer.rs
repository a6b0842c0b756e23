use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{limiter::SelectLimiter, permit_request::PermitRequest, service::RateLimit, settings::Settings};
use crate::{
    call::RequestHead,
    policy::{Priority, dialect::Dialect},
};

/// Queues each request until its permit is granted. Refuses a request immediately if it would miss its deadline or
/// exceed the longest wait, or if the queue is full.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::{RateLimitLayer, LocalLimiter}};
///
/// let bucket = LocalLimiter::token_bucket(Quota::per_minute(100)?);
/// let layer = RateLimitLayer::new(bucket).with_max_wait(Duration::from_secs(10));
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Default
///
/// A request may wait until its call's deadline. At most 10,000 requests of the same or a
/// higher priority are queued.
///
/// # Clone
///
/// All clones of the layer, and all services made from them, share the limiter.
#[derive(Debug, Clone)]
pub struct RateLimitLayer<L> {
    settings: Settings<L>,
}

impl<L> RateLimitLayer<L> {
    /// Creates a layer that limits requests with `limiter`. A [`Keyed`](super::Keyed) uses the limiter of each
    /// request's key.
    pub fn new(limiter: L) -> Self
    where
        L: SelectLimiter,
    {
        let bounds = PermitRequest::new();
        Self {
            settings: Settings {
                limiter,
                bounds,
                cost: None,
                priority: None,
                feedback_from: None,
                dialect: Dialect::new(),
                in_flight_until_head: false,
            },
        }
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> &L {
        &self.settings.limiter
    }

    /// Refuses a request that would wait longer than `max_wait`. `Duration::ZERO` refuses every request that would
    /// wait.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.settings.bounds = self.settings.bounds.with_max_wait(max_wait);
        self
    }

    /// Refuses a request if `max_queue` other requests of the same or a higher priority are queued. Default: 10,000.
    pub fn with_max_queue(mut self, max_queue: usize) -> Self {
        self.settings.bounds = self.settings.bounds.with_max_queue(max_queue);
        self
    }

    /// Sets the function that computes how many permits a request takes. Default: the [`PermitCost`](super::PermitCost)
    /// in the request's extensions, otherwise 1.
    ///
    /// The layer calls the function when the future of a request is first polled, and again each time its permit
    /// expires while the request waits for the inner service or for a connection. Inside a retry layer, each attempt is
    /// a request.
    pub fn with_cost(mut self, cost: impl Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync + 'static) -> Self {
        self.settings.cost = Some(Arc::new(cost));
        self
    }

    /// Sets the function that determines the priority of a request in the queue. Default: the [`Priority`] in the
    /// request's extensions, otherwise [`Priority::Normal`]. The layer calls the function at the same times
    /// as that of [`with_cost`](Self::with_cost).
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::{LocalLimiter, Priority, RateLimitLayer}};
    ///
    /// // Searches wait behind all other requests.
    /// let layer = RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(100)?)).with_priority(|head| {
    ///     if head.uri.path().starts_with("/search") { Priority::Low } else { Priority::Normal }
    /// });
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_priority(
        mut self,
        priority: impl Fn(RequestHead<'_>) -> Priority + Send + Sync + 'static,
    ) -> Self {
        self.settings.priority = Some(Arc::new(priority));
        self
    }

    /// Applies the rate-limit headers of a response only if `trusts` returns `true` for its request. By default, the
    /// headers of all responses apply. Use this setter if one limiter covers several servers. Otherwise the headers of
    /// one server pause the requests to all servers.
    pub fn with_feedback_from(
        mut self,
        trusts: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.feedback_from = Some(Arc::new(trusts));
        self
    }

    /// Counts a request as [in flight](super::LocalLimiter::with_max_in_flight) until the head of its response has
    /// arrived, instead of until its body has ended. Use this setting if the service counts a request only until it
    /// responds, for example because responses are endless streams.
    pub fn with_in_flight_until_head(mut self) -> Self {
        self.settings.in_flight_until_head = true;
        self
    }

    /// Sets how the service reports its limits. Give the retry layer the same dialect.
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.settings.dialect = dialect;
        self
    }

    /// Replaces the limiter and keeps all other settings.
    pub fn with_limiter<M>(self, limiter: M) -> RateLimitLayer<M> {
        let Settings { bounds, cost, priority, feedback_from, dialect, in_flight_until_head, .. } =
            self.settings;
        let settings =
            Settings { limiter, bounds, cost, priority, feedback_from, dialect, in_flight_until_head };
        RateLimitLayer { settings }
    }
}

impl<S, L: SelectLimiter + Clone> Layer<S> for RateLimitLayer<L> {
    type Service = RateLimit<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.settings.clone()))
    }
}
