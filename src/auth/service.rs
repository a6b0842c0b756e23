use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{Authorize, Origin, ResponseFuture};
use crate::error::{BoxError, Error, Kind};

/// The service of [`AuthLayer`](super::AuthLayer).
///
/// # Errors
///
/// [`Error::is_auth`] when the credential can't be put on the request, or the request's URI names no origin;
/// otherwise what the inner service failed with.
pub struct Auth<S, A> {
    inner: S,
    authorize: Arc<A>,
    origin: Arc<Origin>,
}

impl<S, A> Auth<S, A> {
    pub(super) fn new(inner: S, authorize: Arc<A>, origin: Arc<Origin>) -> Self {
        Self { inner, authorize, origin }
    }
}

impl<S: Clone, A> Clone for Auth<S, A> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.authorize), Arc::clone(&self.origin))
    }
}

impl<S, A, B, R> Service<Request<B>> for Auth<S, A>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    A: Authorize,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.uri().authority().is_none() {
            return ResponseFuture::failed(Error::new(
                Kind::Auth,
                "the request's uri names no origin, so nothing tells whether the key may go there",
            ));
        }
        if !self.origin.covers(request.uri()) {
            return ResponseFuture::calling(self.inner.call(request));
        }
        let (mut head, body) = request.into_parts();
        match self.authorize.authorize(&mut head) {
            Ok(()) => ResponseFuture::calling(self.inner.call(Request::from_parts(head, body))),
            Err(error) => ResponseFuture::failed(Error::new(Kind::Auth, error)),
        }
    }
}

impl<S: fmt::Debug, A> fmt::Debug for Auth<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("inner", &self.inner)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}
