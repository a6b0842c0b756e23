use super::{permit_request::PermitRequest, shell::acquire::Acquire};
use crate::call::RequestHead;

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
    /// The layer calls this method when the call's future is first polled, and again if the permit expires before it is
    /// used. The layer polls the returned future immediately. A limiter may take the permits before that. Dropping the
    /// future then wastes them.
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire;
}

impl<L: Limiter> SelectLimiter for L {
    #[inline]
    fn acquire_for(&self, _: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        self.acquire_with(request)
    }
}
