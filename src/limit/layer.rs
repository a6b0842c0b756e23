use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use super::{
    limiter::{PermitRequest, SelectLimiter},
    settlement::{Meter, Metered},
};
use crate::{
    call::RequestHead,
    policy::{Amounts, Priority, dialect::Dialect},
    telemetry::{LastWarning, OrderWarning},
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
///
/// # Features
///
/// The method `from_config` needs the [feature](crate#features) `serde`.
#[derive(Debug, Clone)]
pub struct RateLimitLayer<L> {
    pub(super) settings: Settings<L>,
}

impl<L> RateLimitLayer<L> {
    /// Creates a layer that limits requests with `limiter`. A [`Keyed`](super::Keyed) uses the limiter of each
    /// request's key.
    pub fn new(limiter: L) -> Self
    where
        L: SelectLimiter,
    {
        Self { settings: Settings { limiter, options: Options::default() } }
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> &L {
        &self.settings.limiter
    }

    /// Refuses a request that would wait longer than `max_wait`. `Duration::ZERO` refuses every request that would
    /// wait.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.settings.options.bounds = self.settings.options.bounds.with_max_wait(max_wait);
        self
    }

    /// Refuses a request if `max_queue` other requests of the same or a higher priority are queued. Default: 10,000.
    pub fn with_max_queue(mut self, max_queue: usize) -> Self {
        self.settings.options.bounds = self.settings.options.bounds.with_max_queue(max_queue);
        self
    }

    /// Sets the function that computes how many permits a request takes. Default: the [`PermitCost`](super::PermitCost)
    /// in the request's extensions, otherwise 1.
    ///
    /// The layer calls the function when the future of a request is first polled, and again each time its permit
    /// expires while the request waits for the inner service or for a connection. Inside a retry layer, each attempt is
    /// a request.
    pub fn with_cost(mut self, cost: impl Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync + 'static) -> Self {
        self.settings.options.cost = Some(Arc::new(cost));
        self
    }

    /// Sets the function that estimates the [`Amounts`] of a request, such as its tokens. It takes precedence over
    /// [`Amounts`] in the request's extensions. Default: these [`Amounts`], otherwise zero. The layer calls the function at
    /// the same times as that of [`with_cost`](Self::with_cost).
    ///
    /// The estimate counts until [`with_actual`](Self::with_actual), [`with_meter`](Self::with_meter) or a
    /// [`Settlement`](super::Settlement) reports the actual amounts.
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::{Amounts, LocalLimiter, RateLimitLayer, Unit}};
    ///
    /// let quotas = [Quota::per_minute(500)?, Quota::per_minute(30_000)?.with_unit(Unit::Tokens)?];
    /// let layer = RateLimitLayer::new(LocalLimiter::paced_window(quotas))
    ///     // A token has about four bytes, and the response may take 1,000 tokens.
    ///     .with_estimate(|head| {
    ///         let tokens = head.body_size().unwrap_or(4_000) / 4 + 1_000;
    ///         Amounts::of(Unit::Tokens, tokens.try_into().unwrap_or(u32::MAX))
    ///     })
    ///     .with_actual(|_, headers| {
    ///         let tokens = headers.get("x-tokens-used")?.to_str().ok()?.parse().ok()?;
    ///         Some(Amounts::of(Unit::Tokens, tokens))
    ///     });
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_estimate(
        mut self,
        estimate: impl Fn(RequestHead<'_>) -> Amounts + Send + Sync + 'static,
    ) -> Self {
        self.settings.options.estimate = Some(Arc::new(estimate));
        self
    }

    /// Sets the function that reads the actual amounts of a request from the status and the headers of its response. The
    /// estimate remains if it returns `None`. See [`Settlement`](super::Settlement).
    pub fn with_actual(
        mut self,
        actual: impl Fn(StatusCode, &HeaderMap) -> Option<Amounts> + Send + Sync + 'static,
    ) -> Self {
        self.settings.options.actual = Some(Arc::new(actual));
        self
    }

    /// Sets the function that creates the meter of each response body. The meter receives each part of the body as it is
    /// read, in at most 64 pieces. It returns the actual amounts so far, or `None` if it has no new amounts. Each result
    /// replaces the previous one, so return totals, not increments. Until the end of the body, at least the estimate
    /// counts, unless the meter returns [`Metered::Final`].
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::{Amounts, LocalLimiter, RateLimitLayer, Unit}};
    ///
    /// // The service takes a point for each kilobyte of its response.
    /// let limiter = LocalLimiter::paced_window(Quota::per_minute(1_000)?.with_unit(Unit::Points)?);
    /// let layer = RateLimitLayer::new(limiter).with_estimate(|_| Amounts::of(Unit::Points, 10)).with_meter(|_, _| {
    ///     let mut bytes = 0;
    ///     move |data: &[u8]| {
    ///         bytes += data.len();
    ///         Some(Amounts::of(Unit::Points, (bytes / 1_024) as u32))
    ///     }
    /// });
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// If the body fails or is dropped before its end, the estimate or the amount so far counts, whichever is larger.
    /// After [`Metered::Final`], the final amount counts. The meter receives the bytes as the inner service returns
    /// them.
    pub fn with_meter<M, A>(
        mut self,
        meter: impl Fn(StatusCode, &HeaderMap) -> M + Send + Sync + 'static,
    ) -> Self
    where
        M: FnMut(&[u8]) -> Option<A> + Send + Sync + 'static,
        A: Into<Metered>,
    {
        let meter = move |status: StatusCode, headers: &HeaderMap| -> Meter {
            let mut meter = meter(status, headers);
            Box::new(move |data| meter(data).map(Into::into))
        };
        self.settings.options.meter = Some(Arc::new(meter));
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
        self.settings.options.priority = Some(Arc::new(priority));
        self
    }

    /// Applies the rate-limit headers of a response only if `trusts` returns `true` for its request. By default, the
    /// headers of all responses apply. Use this setter if one limiter covers several servers. Otherwise the headers of
    /// one server pause the requests to all servers.
    ///
    /// A [`StackBuilder`](crate::stack::StackBuilder) sets a function that trusts its base URL's origin, the members of
    /// its pool, and a URI without an origin. A function from
    /// [`with_limit`](crate::stack::StackBuilder::with_limit) replaces it.
    pub fn with_feedback_from(
        mut self,
        trusts: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.options.feedback_from = Some(Arc::new(trusts));
        self
    }

    /// Like [`with_feedback_from`](Self::with_feedback_from), but keeps a function that the layer already has.
    pub(crate) fn or_feedback_from(
        mut self,
        trusts: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.options.feedback_from.get_or_insert_with(|| Arc::new(trusts));
        self
    }

    /// Counts a request as [in flight](super::LocalLimiter::with_max_in_flight) until the head of its response has
    /// arrived, instead of until its body has ended. Use this setting if the service counts a request only until it
    /// responds, for example because responses are endless streams.
    pub fn with_in_flight_until_head(mut self) -> Self {
        self.settings.options.in_flight_until_head = true;
        self
    }

    /// Sets how the service reports its limits. Give the retry layer the same dialect.
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.settings.options.dialect = dialect;
        self
    }

    pub(crate) fn dialect(&self) -> &Dialect {
        &self.settings.options.dialect
    }

    /// Replaces the limiter and keeps all other settings.
    pub fn with_limiter<M>(self, limiter: M) -> RateLimitLayer<M> {
        RateLimitLayer { settings: Settings { limiter, options: self.settings.options } }
    }
}

/// The settings of a [`RateLimitLayer`](super::RateLimitLayer), shared by its services.
#[derive(Clone)]
pub(super) struct Settings<L> {
    pub(super) limiter: L,
    pub(super) options: Options,
}

/// The settings other than the limiter.
#[derive(Clone, Default)]
pub(super) struct Options {
    pub(super) bounds: PermitRequest,
    pub(super) cost: Option<CostOf>,
    pub(super) estimate: Option<EstimateOf>,
    pub(super) actual: Option<ActualOf>,
    pub(super) meter: Option<MeterOf>,
    pub(super) priority: Option<PriorityOf>,
    pub(super) feedback_from: Option<Trusts>,
    pub(super) dialect: Dialect,
    /// Whether a request is in flight until the head of its response, instead of the end of its body.
    pub(super) in_flight_until_head: bool,
    /// The WARN event for a layer that is outside a retry layer.
    pub(super) order_warning: Arc<OrderWarning>,
    /// The WARN event for a layer that is inside an auth layer.
    pub(super) auth_warning: Arc<OrderWarning>,
    pub(super) refusal_warning: Arc<LastWarning>,
}

impl<L: fmt::Debug> fmt::Debug for Settings<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("limiter", &self.limiter)
            .field("bounds", &self.options.bounds)
            .field("in_flight_until_head", &self.options.in_flight_until_head)
            .finish_non_exhaustive()
    }
}

/// Computes the number of permits that a request takes.
type CostOf = Arc<dyn Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync>;

/// Estimates the amounts that a request takes of other units.
type EstimateOf = Arc<dyn Fn(RequestHead<'_>) -> Amounts + Send + Sync>;

/// Reads the actual amounts of a request from the head of its response.
type ActualOf = Arc<dyn Fn(StatusCode, &HeaderMap) -> Option<Amounts> + Send + Sync>;

/// Creates the meter of a response body.
type MeterOf = Arc<dyn Fn(StatusCode, &HeaderMap) -> Meter + Send + Sync>;

/// Returns the priority of a request.
type PriorityOf = Arc<dyn Fn(RequestHead<'_>) -> Priority + Send + Sync>;

/// Returns whether the rate-limit headers of the response to this request apply to the limiter.
type Trusts = Arc<dyn Fn(RequestHead<'_>) -> bool + Send + Sync>;
