use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::{Ask, Limiter, ResponseFuture};
use crate::{
    call::Call,
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
#[derive(Debug, Clone)]
pub struct RateLimit<S, L> {
    inner: S,
    limiter: L,
    bounds: Ask,
}

impl<S, L> RateLimit<S, L> {
    pub(super) fn new(inner: S, limiter: L, bounds: Ask) -> Self {
        Self { inner, limiter, bounds }
    }
}

impl<S, L, B, R> Service<Request<B>> for RateLimit<S, L>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    L: Limiter,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S, L, B>;

    /// Always ready: the wait is in the future, and so is the inner service's readiness.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<Call>().cloned();
        let deadline = call.as_ref().and_then(Call::deadline);
        let acquire = self.limiter.acquire(Ask { deadline, ..self.bounds });
        ResponseFuture::new(acquire, self.inner.clone(), self.limiter.clone(), request, call)
    }
}
