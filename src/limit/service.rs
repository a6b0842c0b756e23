use std::{
    fmt,
    num::NonZeroU32,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{PermitCost, PermitRequest, RateLimitLayer, ResponseFuture, SelectLimiter, future::Permits};
use crate::{
    call::{CallContext, Deadline, RequestHead},
    error::{BoxError, Error},
};

/// The service of [`RateLimitLayer`](super::RateLimitLayer).
///
/// # Errors
///
/// [`Error::is_rate_limited`] when the limiter refused; otherwise what the inner service failed with.
///
/// # Cancellation
///
/// Dropping a waiting call spends nothing. Dropping it between the grant and the inner service's call loses
/// that one grant.
pub struct RateLimit<S, L> {
    inner: S,
    settings: Arc<RateLimitLayer<L>>,
}

impl<S, L> RateLimit<S, L> {
    pub(super) fn new(inner: S, settings: Arc<RateLimitLayer<L>>) -> Self {
        Self { inner, settings }
    }
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

    /// Always ready: the wait is in the future, and so is the inner service's readiness.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<CallContext>().cloned();
        let deadline = Deadline::of(call.as_ref(), request.extensions());
        let head = RequestHead::of(&request);
        let RateLimitLayer { limiter, bounds, cost, heeds } = &*self.settings;
        let cost = match cost {
            Some(cost) => cost(head),
            None => head.extensions.get().map_or(NonZeroU32::MIN, |PermitCost(cost)| *cost),
        };
        match limiter.select(head) {
            Ok(limiter) => {
                let heeded = heeds.as_ref().is_none_or(|heeds| heeds(head));
                let permits = Permits::new(limiter, PermitRequest { cost, deadline, ..*bounds }, heeded);
                ResponseFuture::new(self.inner.clone(), permits, request, call)
            }
            Err(refusal) => ResponseFuture::refused(refusal, self.inner.clone(), call),
        }
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
