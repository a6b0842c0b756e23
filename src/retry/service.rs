use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{ResponseFuture, layer::Policy};
use crate::{
    body::ReplayBody,
    error::{BoxError, Error},
};

/// The service of [`RetryLayer`](super::RetryLayer).
///
/// # Errors
///
/// What the last attempt failed with, and the [`Report`](crate::Report) of them all.
///
/// # Cancellation
///
/// Dropping the call drops the attempt under way, or the back-off; nothing is left running. A retry that was not sent
/// yet costs the budget nothing: one in its back-off, or one that a [`RateLimit`](crate::limit::RateLimit) further in
/// holds. Of two limiters, one below the other, what the first has let through counts as sent; and what a layer in
/// between sends on although its caller has gone, in a task of its own, costs nothing where a limiter held it then.
#[derive(Debug, Clone)]
pub struct Retry<S> {
    inner: S,
    policy: Arc<Policy>,
}

impl<S> Retry<S> {
    pub(super) fn new(inner: S, policy: Arc<Policy>) -> Self {
        Self { inner, policy }
    }
}

impl<S, B, R> Service<Request<B>> for Retry<S>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body,
    R: Body,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S, B, R>;

    /// Always ready: each attempt readies the inner service in the future.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture::new(self.inner.clone(), Arc::clone(&self.policy), request)
    }
}
