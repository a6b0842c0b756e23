use super::{permit::Permit, permit_request::PermitRequest, queue::acquire::Acquire};
use crate::{call::RequestHead, error::Refusal};

/// Decides when a request may be sent. Every limiter implements this trait.
///
/// Clones of an implementation must share their state, so that all layers made from them share one quota.
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
/// issuer](Permit::with_issuer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "not a limiter",
    note = "`PacedWindow::new(quota)`, `TokenBucket::new(quota)` and `SlidingWindow::new(quota)` create a limiter. Another type must implement `limit::Limiter`, and be `Clone`"
)]
pub trait Limiter: Clone {
    /// Waits for the permit of one request. Before the returned future is first polled, nothing is spent and nothing is
    /// queued.
    fn acquire_with(&self, request: &PermitRequest) -> Acquire;

    /// Grants or refuses a permit immediately, without overtaking a waiter. Returns `None`, without side effects, if it
    /// cannot decide without waiting. The layer then calls [`acquire_with`](Self::acquire_with).
    ///
    /// Returns `None` by default. A custom implementation saves time. A [`TokenBucket`](super::TokenBucket) of one
    /// quota returns `Some` if the permits are available, no request waits, no server limit applies and its quotas were
    /// never replaced.
    fn try_acquire_with(&self, _request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        None
    }
}

/// Selects the limiter of a request. A [`Limiter`] is used for every request, and a [`Keyed`](super::Keyed) has one
/// limiter for each key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a `Limiter` nor a `SelectLimiter`",
    note = "`PacedWindow::new(quota)`, `TokenBucket::new(quota)` and `SlidingWindow::new(quota)` create a limiter, and `Keyed` holds several. Another type must implement `limit::Limiter`"
)]
pub trait SelectLimiter {
    /// Waits for the permit of the request that `head` belongs to.
    ///
    /// The layer calls it when the call's future is first polled, and again if the permit expires before it is used.
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire;

    /// Grants or refuses a permit immediately, or returns `None`: see [`Limiter::try_acquire_with`]. The layer calls it
    /// before [`acquire_for`](Self::acquire_for).
    ///
    /// Returns `None` by default.
    fn try_acquire_for(
        &self,
        _head: RequestHead<'_>,
        _request: &PermitRequest,
    ) -> Option<Result<Permit<'static>, Refusal>> {
        None
    }
}

impl<L: Limiter> SelectLimiter for L {
    #[inline]
    fn acquire_for(&self, _: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        self.acquire_with(request)
    }

    #[inline]
    fn try_acquire_for(
        &self,
        _: RequestHead<'_>,
        request: &PermitRequest,
    ) -> Option<Result<Permit<'static>, Refusal>> {
        self.try_acquire_with(request)
    }
}
