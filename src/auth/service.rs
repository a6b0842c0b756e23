use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::MaybeDone;
use http::{Request, Response};
use tower_service::Service;

use super::{
    Origin, ResponseFuture,
    credential::Credential,
    refresh::{Lease, Refresh},
};
use crate::error::{BoxError, Error, MaybeRejected};

/// The service of [`AuthLayer`](super::AuthLayer).
///
/// Ready when the inner service is ready and the key source has a key or has failed.
///
/// # Errors
///
/// - [`Error::is_auth`] if the credential cannot be put on the request, or the request's URI names no origin.
/// - [`Error::is_invalid_request`] if the request has no room for another header field.
/// - Otherwise the inner service's error.
pub struct Auth<S> {
    inner: S,
    credential: Arc<Credential>,
    origins: Arc<[Origin]>,
    /// The wait for the key, and its result. A limiter further out keeps this wait out of its window.
    ready: MaybeDone<Refresh>,
}

impl<S> Auth<S> {
    pub(super) fn new(inner: S, credential: Arc<Credential>, origins: Arc<[Origin]>) -> Self {
        Self { inner, credential, origins, ready: MaybeDone::Gone }
    }

    inner_service!();
}

impl<S: Clone> Clone for Auth<S> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.credential), Arc::clone(&self.origins))
    }
}

impl<S, B, R> Service<Request<B>> for Auth<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Credential::Changing(changing) = &*self.credential {
            if let MaybeDone::Gone = self.ready {
                self.ready = match changing.keys.lease() {
                    Lease::Ready(key) => MaybeDone::Done(Ok(key)),
                    Lease::Wait(refresh) => MaybeDone::Future(refresh),
                };
            }
            ready!(Pin::new(&mut self.ready).poll(cx));
        }
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Each request uses up the key of its readiness, so that the next one gets a current key.
        let ready = match mem::replace(&mut self.ready, MaybeDone::Gone) {
            MaybeDone::Done(key) => Some(key),
            _ => None,
        };
        match Origin::any_covers(&self.origins, request.uri()) {
            Ok(true) => {}
            other => {
                return ResponseFuture::new(None, MaybeRejected::new(other, |_| self.inner.call(request)));
            }
        }
        let (mut head, body) = request.into_parts();
        let (key, checked) = match self.credential.put(&mut head, ready) {
            Ok(key) => (key, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let call = |()| self.inner.call(Request::from_parts(head, body));
        ResponseFuture::new(key, MaybeRejected::new(checked, call))
    }
}

impl<S: fmt::Debug> fmt::Debug for Auth<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("inner", &self.inner)
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}
