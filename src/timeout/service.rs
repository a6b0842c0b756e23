use std::{
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tower_service::Service;

use super::ResponseFuture;
use crate::{
    call::{CallContext, Deadline},
    clock,
    error::{BoxError, Error, Scope},
};

/// The service of [`TimeoutLayer`](super::TimeoutLayer).
///
/// # Errors
///
/// [`Error::is_timeout`] when time ran out; otherwise what the inner service failed with.
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    inner: S,
    scope: Scope,
    limit: Duration,
}

impl<S> Timeout<S> {
    pub(super) fn new(inner: S, scope: Scope, limit: Duration) -> Self {
        Self { inner, scope, limit }
    }
}

impl<S, B, R> Service<Request<B>> for Timeout<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let now = clock::now();
        let own = clock::after(now, self.limit);
        let (call, deadline) = match self.scope {
            Scope::Call => {
                let call = CallContext::of(request.extensions_mut());
                let earlier = call.narrow_deadline(own);
                (Some(call), earlier)
            }
            Scope::Attempt => {
                let call = request.extensions().get::<CallContext>().cloned();
                let deadline = Deadline::of(call.as_ref(), request.extensions());
                (call, deadline)
            }
        };
        // Whichever comes first names the error: an attempt cut off by the deadline is not a slow attempt.
        let (ends, scope) = match deadline {
            Some(deadline) if deadline <= own => (deadline, Scope::Call),
            _ => (own, self.scope),
        };
        // What is over before it begins is not sent.
        match now <= ends {
            true => ResponseFuture::new(ends, scope, self.limit, call, || Some(self.inner.call(request))),
            false => ResponseFuture::new(ends, scope, self.limit, call, || None),
        }
    }
}
