use std::{num::NonZeroU32, time::Duration};

use super::{feedback::ResponseInfo, permit::Permit, shell::acquire::Acquire, snapshot::Effect};
use crate::{
    call::RequestHead,
    clock::Instant,
    policy::{Amounts, Priority, Taken},
};

/// Determines when a request may be sent. Every limiter implements this trait.
///
/// All clones of a limiter must share their state, so that all layers made from them share one quota.
///
/// ```
/// use std::{sync::{Arc, Mutex}, time::Duration};
/// use tower_outbound::{
///     error::{Reason, Refusal},
///     limit::{Acquire, Limiter, Permit, PermitRequest, RateLimitLayer},
/// };
///
/// /// Grants a fixed number of permits, and then none.
/// #[derive(Clone)]
/// struct Total(Arc<Mutex<u32>>);
///
/// impl Limiter for Total {
///     fn acquire_with(&self, request: &PermitRequest) -> Acquire {
///         let Ok(mut left) = self.0.lock() else {
///             return Acquire::ready(Err(Refusal::new(Reason::Unavailable, None)));
///         };
///         Acquire::ready(match left.checked_sub(request.cost().get()) {
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
/// A limiter that counts requests in flight, or adapts to responses, creates its permits [with an
/// issuer](super::Permit::with_issuer).
///
/// To take the permits of two limiters, use a [`Joint`](super::Joint) instead of a custom limiter over both: a permit
/// of the first is held while the request waits for the second, so the first quota does not hold at the server.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "not a limiter",
    note = "`LocalLimiter::paced_window(quota)`, `LocalLimiter::token_bucket(quota)` and `LocalLimiter::sliding_window(quota)` create a limiter. Another type must implement `limit::Limiter`, and be `Clone`"
)]
pub trait Limiter: Clone {
    /// Returns a future that waits for the permits of one request. Until the future is first polled, no permit is spent
    /// and the request is not queued.
    fn acquire_with(&self, request: &PermitRequest) -> Acquire;
}

/// Selects the limiter of a request. A [`Limiter`] selects itself for every request. A [`Keyed`](super::Keyed) selects
/// the limiter of the request's key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a `Limiter` nor a `SelectLimiter`",
    note = "`LocalLimiter::paced_window(quota)`, `LocalLimiter::token_bucket(quota)` and `LocalLimiter::sliding_window(quota)` create a limiter, and `Keyed` holds several. Another type must implement `limit::Limiter`"
)]
pub trait SelectLimiter {
    /// Returns a future that waits for a permit for the request whose head is `head`.
    ///
    /// The layer calls this method when the call's future is first polled, and again if the permit expires before the
    /// inner service is ready. If it expires while the request waits for a connection, the permit's issuer
    /// [renews](PermitIssuer::renew) it. If the issuer does not, the layer calls this method with the head that the
    /// inner layers have changed.
    ///
    /// The layer polls the returned future immediately. A limiter may take the permits before that. Dropping the future
    /// then wastes them.
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire;
}

impl<L: Limiter> SelectLimiter for L {
    #[inline]
    fn acquire_for(&self, _: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        self.acquire_with(request)
    }
}

/// Receives the outcome of each permit of a limiter, and determines whether a permit has expired.
pub trait PermitIssuer: Send + Sync {
    /// Returns whether `permit` can no longer be used. The layer calls this method if the inner service was not ready
    /// right after the grant, or if the request then waited for a connection of this crate's `transport`.
    ///
    /// By default, a permit expires as soon as the clock advances after the grant, because a request sent later could
    /// be in another window.
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        permit.is_older_than_now()
    }

    /// Returns a future that waits for another permit of the same limiter. The layer calls this method if a permit has
    /// expired while its request waited for a connection. Returns `None` by default: the layer then calls
    /// [`acquire_for`](SelectLimiter::acquire_for) with the head that the inner layers have changed, and with the cost
    /// and the amounts of the expired permit.
    fn renew(&self, _request: &PermitRequest) -> Option<Acquire> {
        None
    }

    /// Called when the request of `permit` received a response. Returns what the response changed, which the rate-limit
    /// layer logs. Does nothing and returns no change by default.
    fn completed(&self, _permit: &Permit<'_>, _response: &ResponseInfo<'_>) -> Effect {
        Effect::default()
    }

    /// Called when the request of `permit` ended without a response, or with a response that does not concern this
    /// limiter. The request may still reach the server if [`sent_at`](Permit::sent_at) is `Some`. Does nothing by
    /// default.
    fn dropped(&self, _permit: &Permit<'_>) {}

    /// Returns whether the issuer counts requests in flight, so that [`left_flight`](Self::left_flight) is called.
    /// `false` by default.
    ///
    /// An issuer that passes the outcomes to a [`LocalLimiter`](super::LocalLimiter) must pass both methods if that
    /// limiter [limits the requests in flight](super::LocalLimiter::with_max_in_flight).
    fn counts_in_flight(&self) -> bool {
        false
    }

    /// Called once for each permit if [`counts_in_flight`](Self::counts_in_flight) returns `true`, after
    /// [`completed`](Self::completed) or [`dropped`](Self::dropped), when its request is no longer in flight.
    /// `is_cancelled` is `true` if the request was sent and ended before its response did, so that the server may still
    /// process it. Does nothing by default.
    fn left_flight(&self, _is_cancelled: bool) {}

    /// Called each time the amounts of the request change. `actual` replaces the amounts
    /// [charged](Taken::charged) before. The permit was granted at `granted_at`. Does nothing by default.
    fn settled(&self, _granted_at: Instant, _taken: &Taken, _actual: &Amounts) {}
}

/// The permits that one request needs, and how long it may wait for them.
///
/// A limiter refuses a request immediately, without spending anything, if it cannot grant the permits within the bounds
/// of the `PermitRequest`.
///
/// # Default
///
/// One permit, no amounts, [`Priority::Normal`], no deadline, no limit on the wait, and at most
/// [`DEFAULT_MAX_QUEUE`](Self::DEFAULT_MAX_QUEUE) other waiters of the same or a higher priority.
#[derive(Debug, Clone, Copy)]
pub struct PermitRequest {
    cost: NonZeroU32,
    priority: Priority,
    deadline: Option<Instant>,
    max_wait: Option<Duration>,
    max_queue: usize,
    is_in_flight: bool,
    is_renewed: bool,
    amounts: Amounts,
}

impl PermitRequest {
    /// The default maximum number of other queued requests of the same or a higher priority: 10,000. A waiter takes
    /// about 400 bytes in a task that only waits for the limiter, and about 1.5 KB in the complete stack of a preset. A
    /// full queue takes 4 to 15 MB (`benches/memory.rs`).
    pub const DEFAULT_MAX_QUEUE: usize = 10_000;

    /// Creates a request for one permit with the default bounds.
    pub const fn new() -> Self {
        Self {
            cost: NonZeroU32::MIN,
            priority: Priority::Normal,
            deadline: None,
            max_wait: None,
            max_queue: Self::DEFAULT_MAX_QUEUE,
            is_in_flight: false,
            is_renewed: false,
            amounts: Amounts::NONE,
        }
    }

    /// Sets the number of permits. They are granted together.
    pub const fn with_cost(mut self, cost: NonZeroU32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the estimated amounts, such as tokens. They are granted together with the permits, and
    /// [settled](super::Settlement) when the actual amounts are known. Call
    /// [`Permit::mark_sent`](super::Permit::mark_sent), because a permit that is dropped without it returns them.
    /// Default: none.
    pub const fn with_amounts(mut self, amounts: Amounts) -> Self {
        self.amounts = amounts;
        self
    }

    /// Sets the priority. The limiter queues the request behind all waiters of the same or a higher priority.
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Makes the limiter refuse the request if its permits are not available by `deadline`.
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Makes the limiter refuse the request if it would wait longer than `max_wait`.
    ///
    /// The limiter forecasts the wait at these times:
    ///
    /// - The request arrives.
    /// - A server limit, the quotas or the learned rate change.
    /// - A request turns out to take more than its estimated amounts, up to 10 ms later.
    /// - Requests of a higher priority overtake the request, up to 10 ms later.
    /// - A waiter returns to its position ahead of the request, up to 10 ms later.
    /// - The request becomes the head of the queue.
    ///
    /// The forecast of a sliding or paced window may be too short if requests that cost several permits, or take
    /// amounts, leave gaps.
    pub const fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Makes the limiter refuse the request if `max_queue` other requests of the same or a higher priority are queued.
    pub const fn with_max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// Returns the number of permits.
    pub const fn cost(&self) -> NonZeroU32 {
        self.cost
    }

    /// Returns the estimated amounts.
    pub const fn amounts(&self) -> &Amounts {
        &self.amounts
    }

    /// Returns the priority.
    pub const fn priority(&self) -> Priority {
        self.priority
    }

    /// Returns the time by which the permits must be available.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the longest acceptable wait.
    pub const fn max_wait(&self) -> Option<Duration> {
        self.max_wait
    }

    /// Returns the largest acceptable number of other waiters.
    pub const fn max_queue(&self) -> usize {
        self.max_queue
    }

    /// Returns whether the request already counts as [in flight](super::LocalLimiter::with_max_in_flight), because an
    /// earlier permit of it has expired before it was sent. Its new permit takes over that place.
    pub const fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }

    /// Returns whether an earlier permit of the request has expired before it was sent.
    pub(crate) const fn is_renewed(&self) -> bool {
        self.is_renewed
    }

    /// Returns this request as it is after a part of its wait.
    pub(crate) fn after(self, waited: Duration) -> Self {
        Self { max_wait: self.max_wait.map(|wait| wait.saturating_sub(waited)), ..self }
    }

    /// Returns this request with its deadline, but without a limit on the wait or the queue. Used after the limiter has
    /// admitted the request.
    pub(crate) const fn admitted(self) -> Self {
        Self { max_wait: None, max_queue: usize::MAX, ..self }
    }

    /// Returns the admitted request after its permit has expired. It may still be in flight.
    ///
    /// The request was granted a permit before the waiters, so its priority is raised. At the end of the queue, it
    /// would keep its connection or its ready service idle, and the waiters before it would lack them, too.
    pub(crate) fn renewed(self, is_in_flight: bool) -> Self {
        let priority = if self.priority == Priority::Low { Priority::Normal } else { Priority::High };
        Self { priority, is_in_flight, is_renewed: true, ..self.admitted() }
    }
}

impl Default for PermitRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of permits that a request takes. Insert this value into the request's extensions. Default: 1.
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
