use std::{
    fmt,
    num::NonZeroU32,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    Ask, Cost, Head, ResponseFuture, Select,
    future::Permits,
    layer::{CostOf, Heeds},
};
use crate::{
    call::{Call, Deadline},
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
#[derive(Clone)]
pub struct RateLimit<S, L> {
    inner: S,
    limiter: L,
    bounds: Ask,
    cost: Option<CostOf>,
    heeds: Option<Heeds>,
}

impl<S, L> RateLimit<S, L> {
    pub(super) fn new(inner: S, limiter: L, bounds: Ask, cost: Option<CostOf>, heeds: Option<Heeds>) -> Self {
        Self { inner, limiter, bounds, cost, heeds }
    }
}

impl<S, L, B, R> Service<Request<B>> for RateLimit<S, L>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    L: Select,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S, L::Limiter, B>;

    /// Always ready: the wait is in the future, and so is the inner service's readiness.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<Call>().cloned();
        let deadline = Deadline::of(request.extensions());
        let head = Head::of(&request);
        let cost = match &self.cost {
            Some(cost) => cost(head),
            None => head.extensions.get().map_or(NonZeroU32::MIN, |Cost(cost)| *cost),
        };
        match self.limiter.select(head) {
            Ok(limiter) => {
                let heeded = self.heeds.as_ref().is_none_or(|heeds| heeds(head));
                let permits = Permits::new(limiter, Ask { cost, deadline, ..self.bounds }, heeded);
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
            .field("limiter", &self.limiter)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}
