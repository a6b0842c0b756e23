use std::{
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tower_service::Service;

use super::{ResponseFuture, future::Expiry};
use crate::{
    call::{CallContext, Deadline},
    clock,
    error::{BoxError, Error, ErrorKind},
};

/// The service of [`TimeoutLayer`](super::TimeoutLayer).
///
/// # Errors
///
/// Returns an error with [`Error::is_timeout`] if the call or attempt took too long. Otherwise returns the inner
/// service's error.
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    inner: S,
    kind: ErrorKind,
    limit: Duration,
}

impl<S> Timeout<S> {
    pub(super) fn new(inner: S, kind: ErrorKind, limit: Duration) -> Self {
        Self { inner, kind, limit }
    }

    inner_service!();
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
        let (call, deadline) = match self.kind {
            ErrorKind::Deadline => {
                let call = CallContext::of(request.extensions_mut());
                let earlier = call.narrow_deadline(own);
                (Some(call), earlier)
            }
            _ => {
                let call = request.extensions().get::<CallContext>().cloned();
                let deadline = Deadline::of(call.as_ref(), request.extensions());
                (call, deadline)
            }
        };
        // If the deadline is earlier than the end of the attempt timeout, the error names the deadline, because the
        // attempt may not be slow.
        let (ends, kind) = match deadline {
            Some(deadline) if deadline <= own => (deadline, ErrorKind::Deadline),
            _ => (own, self.kind),
        };
        let expiry = Expiry { ends, kind, limit: self.limit, call };
        ResponseFuture::new(expiry, now > ends, || self.inner.call(request))
    }
}
