use std::{future::Future, num::NonZeroU32, sync::Arc, time::Duration};

use super::permit::Permit;
use crate::{call::RequestHead, clock::Instant, error::Refusal};

/// Decides when a request may be sent: the port of every limiter.
///
/// Clones of an implementation share one state, so that every layer made of them shares the quota.
///
/// ```
/// use std::{future::{Ready, ready}, sync::{Arc, Mutex}, time::Duration};
/// use tower_outbound::{error::{Reason, Refusal}, limit::{Limiter, Permit, PermitRequest, RateLimitLayer}};
///
/// /// Grants a fixed number of permits, and then none.
/// #[derive(Clone)]
/// struct Total(Arc<Mutex<u32>>);
///
/// impl Limiter for Total {
///     type Acquire = Ready<Result<Permit<'static>, Refusal>>;
///
///     fn acquire_with(&self, request: &PermitRequest) -> Self::Acquire {
///         let Ok(mut left) = self.0.lock() else { return ready(Err(Refusal::new(Reason::Unavailable, None))) };
///         ready(match left.checked_sub(request.cost().get()) {
///             Some(after) => {
///                 *left = after;
///                 Ok(Permit::new(request.cost()))
///             }
///             None => Err(Refusal::new(Reason::Unavailable, Duration::MAX)),
///         })
///     }
/// }
///
/// let layer = RateLimitLayer::new(Total(Arc::new(Mutex::new(1_000))));
/// ```
///
/// A limiter that counts requests in flight, or adapts to responses, grants permits
/// [with an issuer](Permit::with_issuer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "not a limiter",
    note = "a limiter is a `TokenBucket` or a `SlidingWindow`, made of a `Quota`, or an implementation of `limit::Limiter`, which must be `Clone`"
)]
pub trait Limiter: Clone {
    /// The future of [`acquire_with`](Self::acquire_with). Dropping it while it is queued spends nothing.
    type Acquire: Future<Output = Result<Permit<'static>, Refusal>>;

    /// Waits for the permit of one request. Spends nothing and does not queue before the future is first polled.
    fn acquire_with(&self, request: &PermitRequest) -> Self::Acquire;

    /// Grants or refuses a permit immediately, without overtaking a waiter. Returns `None`, without side effects, if it
    /// cannot decide without waiting. The layer then calls [`acquire_with`](Self::acquire_with).
    ///
    /// Default: `None`. `Some` saves time: the request needs no future for a wait, and none is boxed behind an
    /// [`AnyLimiter`](super::AnyLimiter). A [`TokenBucket`](super::TokenBucket) of one quota returns `Some` for costs up
    /// to its burst, while no request waits, no server limit applies and its quotas were never replaced.
    fn try_acquire_with(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        let _ = request;
        None
    }
}

impl<L: Limiter> Limiter for Arc<L> {
    type Acquire = L::Acquire;

    fn acquire_with(&self, request: &PermitRequest) -> Self::Acquire {
        L::acquire_with(self, request)
    }

    fn try_acquire_with(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        L::try_acquire_with(self, request)
    }
}

/// Selects the limiter of a request. Every limiter selects itself, and a [`Keyed`](super::Keyed) the limiter of the
/// request's key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a limiter nor a choice of one",
    note = "a limiter is a `TokenBucket` or a `SlidingWindow`, made of a `Quota`, a `Keyed` of them, or an implementation of `limit::Limiter`"
)]
pub trait SelectLimiter: Clone {
    /// The limiter.
    type Limiter: Limiter;

    /// Returns the limiter of this request.
    ///
    /// # Errors
    ///
    /// Returns a refusal if there is none.
    fn select(&self, head: RequestHead<'_>) -> Result<Self::Limiter, Refusal>;
}

impl<L: Limiter> SelectLimiter for L {
    type Limiter = L;

    fn select(&self, _: RequestHead<'_>) -> Result<L, Refusal> {
        Ok(self.clone())
    }
}

/// The permits that one request needs, and how long it may wait for them.
///
/// A request that cannot be served within its bounds is refused immediately and spends nothing.
///
/// # Default
///
/// One permit, no deadline, any wait, at most [`DEFAULT_MAX_QUEUE`](Self::DEFAULT_MAX_QUEUE) other waiters.
#[derive(Debug, Clone, Copy)]
pub struct PermitRequest {
    cost: NonZeroU32,
    deadline: Option<Instant>,
    max_wait: Option<Duration>,
    max_queue: usize,
}

impl PermitRequest {
    /// 10,000 waiters. Each takes about 400 bytes in a task that only waits for the limiter, and 3 KB in the whole stack
    /// of a preset: 4 to 30 MB (`benches/memory.rs`).
    pub const DEFAULT_MAX_QUEUE: usize = 10_000;

    /// Creates a request for one permit with the default bounds.
    pub const fn new() -> Self {
        Self { cost: NonZeroU32::MIN, deadline: None, max_wait: None, max_queue: Self::DEFAULT_MAX_QUEUE }
    }

    /// Sets the number of permits. The request gets all of them or none.
    pub const fn with_cost(mut self, cost: NonZeroU32) -> Self {
        self.cost = cost;
        self
    }

    /// Refuses the request if its permits are not available by `deadline`.
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Refuses the request if it would wait longer than `max_wait`.
    ///
    /// The wait is forecast when the request arrives, and again when a server limit changes and when the request becomes
    /// the head of the queue. The forecast of a sliding window may be too short if costs above one leave gaps.
    pub const fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Refuses the request if `max_queue` others are queued.
    pub const fn with_max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// The number of permits.
    pub const fn cost(&self) -> NonZeroU32 {
        self.cost
    }

    /// The latest moment at which the permits are useful.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The longest wait.
    pub const fn max_wait(&self) -> Option<Duration> {
        self.max_wait
    }

    /// The largest number of other waiters.
    pub const fn max_queue(&self) -> usize {
        self.max_queue
    }

    /// The same request without the bounds of its first wait, because the limiter has admitted it already.
    pub(super) const fn admitted(self) -> Self {
        Self { max_wait: None, max_queue: usize::MAX, ..self }
    }
}

impl Default for PermitRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of permits that a request takes. Put it into the request's extensions. Default: 1.
///
/// ```
/// use std::num::NonZeroU32;
/// use tower_outbound::limit::PermitCost;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PermitCost(NonZeroU32::new(5).ok_or("not zero")?));
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitCost(pub NonZeroU32);
