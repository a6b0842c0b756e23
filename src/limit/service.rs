use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{future::ResponseFuture, in_flight::InFlightBody, limiter::SelectLimiter, settings::Settings};
use crate::{
    call::CallContext,
    error::{BoxError, Error},
};

/// The service of [`RateLimitLayer`](super::RateLimitLayer).
///
/// # Errors
///
/// Returns an error with [`Error::is_rate_limited`] if the limiter refused the request. Otherwise returns the inner
/// service's error.
///
/// # Cancellation
///
/// Dropping a queued call spends no permit. Dropping a call between the grant and the call of the inner service wastes
/// its permit.
#[derive(Debug, Clone)]
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

impl<S, L, B, R> Service<Request<B>> for RateLimit<S, L>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    L: SelectLimiter,
{
    type Response = Response<InFlightBody<R>>;
    type Error = Error;
    type Future = ResponseFuture<S, L, B>;

    /// Always returns ready. The future of each call waits for the permit and for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request.extensions().get::<CallContext>().cloned();
        ResponseFuture::new(self.inner.clone(), Arc::clone(&self.settings), request, call)
    }
}
