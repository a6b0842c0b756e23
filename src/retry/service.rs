use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{ResponseFuture, policy::Policy};
use crate::{
    body::ReplayBody,
    error::{BoxError, Error},
};

/// The service of [`RetryLayer`](super::RetryLayer).
///
/// # Errors
///
/// Returns the error of the last attempt, with the [`Report`](crate::Report) of all attempts.
///
/// # Cancellation
///
/// Dropping the call also drops the running attempt or the backoff, and nothing continues in the background. The budget
/// does not get back the cost of a retry, even if the call is dropped before the retry is sent.
#[derive(Debug, Clone)]
pub struct Retry<S> {
    pub(super) inner: S,
    pub(super) policy: Arc<Policy>,
}

impl<S> Retry<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for Retry<S>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body + 'static,
    R: Body,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S, B, R>;

    /// Always returns ready. Before each attempt, the call's future waits until the inner service is ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture::new(self.inner.clone(), Arc::clone(&self.policy), request)
    }
}
