use std::{
    fmt,
    num::NonZeroU32,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    future::ResponseFuture,
    limiter::{PermitCost, PermitRequest, SelectLimiter},
};
use crate::{
    call::{CallContext, Deadline, RequestHead},
    error::{BoxError, Error},
};

/// The settings of a [`RateLimitLayer`](super::RateLimitLayer), shared by its services.
#[derive(Clone)]
pub(super) struct Settings<L> {
    pub(super) limiter: L,
    pub(super) bounds: PermitRequest,
    pub(super) cost: Option<CostOf>,
    pub(super) feedback_from: Option<Trusts>,
}

/// Computes the cost of a request.
type CostOf = Arc<dyn Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync>;

/// Decides whether the response to a request concerns the limiter.
type Trusts = Arc<dyn Fn(RequestHead<'_>) -> bool + Send + Sync>;

/// The service of [`RateLimitLayer`](super::RateLimitLayer).
///
/// # Errors
///
/// [`Error::is_rate_limited`] if the limiter refused the request. Otherwise the inner service's error.
///
/// # Cancellation
///
/// Dropping a queued call spends nothing. Dropping it between the grant and the inner service's call wastes its permit.
pub struct RateLimit<S, L> {
    inner: S,
    settings: Arc<Settings<L>>,
}

impl<S, L> RateLimit<S, L> {
    pub(super) fn new(inner: S, settings: Arc<Settings<L>>) -> Self {
        Self { inner, settings }
    }

    inner_service!();
}

impl<S: Clone, L> Clone for RateLimit<S, L> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.settings))
    }
}

impl<S, L, B, R> Service<Request<B>> for RateLimit<S, L>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    L: SelectLimiter,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S, L::Limiter, B>;

    /// Returns ready immediately. The future waits for the permit and for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<CallContext>().cloned();
        let deadline = Deadline::of(call.as_ref(), request.extensions());
        let head = RequestHead::of(&request);
        let Settings { limiter, bounds, cost, feedback_from } = &*self.settings;
        let cost = match cost {
            Some(cost) => cost(head),
            None => head.extensions.get().map_or(NonZeroU32::MIN, |PermitCost(cost)| *cost),
        };
        let mut bounds = bounds.with_cost(cost);
        if let Some(deadline) = deadline {
            bounds = bounds.with_deadline(deadline);
        }
        let limiter = limiter.select(head);
        let trusted = feedback_from.as_ref().is_none_or(|trusts| trusts(head));
        ResponseFuture::new(self.inner.clone(), limiter, bounds, trusted, request, call)
    }
}

impl<S: fmt::Debug, L: fmt::Debug> fmt::Debug for RateLimit<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.settings.limiter)
            .field("bounds", &self.settings.bounds)
            .finish_non_exhaustive()
    }
}
