use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::future::{MaybeDone, maybe_done};
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{AuthLayer, Origin, ResponseFuture, credential::Credential, refresh::Lease};
use crate::error::{BoxError, Error, MaybeRejected};

/// The service of [`AuthLayer`](super::AuthLayer).
///
/// The service is ready when the inner service is ready, and the key source either has a key or has failed.
///
/// # Errors
///
/// - [`Error::is_auth`] if the credential cannot be added to the request, or the request's URI has no origin.
/// - [`Error::is_invalid_request`] if the request has no room for another header field.
/// - Passes on the errors of the inner service.
#[derive(Debug)]
pub struct Auth<S> {
    inner: S,
    layer: AuthLayer,
    /// The future that waits for the key or, after its completion, the result. If a permit expires during this wait,
    /// the rate limit layer acquires another permit.
    ready: MaybeDone<Lease>,
}

impl<S> Auth<S> {
    inner_service!();
}

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Auth { inner, layer: self.clone(), ready: MaybeDone::Gone }
    }
}

impl<S: Clone> Clone for Auth<S> {
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
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
        if let Credential::Changing(changing) = &*self.layer.credential {
            if let MaybeDone::Gone = self.ready {
                self.ready = maybe_done(changing.keys.lease());
            }
            ready!(Pin::new(&mut self.ready).poll(cx));
        }
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Takes the key out of the service. Before the next request, the service must become ready again, with a
        // current key.
        let ready = Pin::new(&mut self.ready).take_output();
        match Origin::any_covers(&self.layer.origins, request.uri()) {
            Ok(true) => {}
            other => {
                return ResponseFuture::new(None, MaybeRejected::new(other, |_| self.inner.call(request)));
            }
        }
        let (mut head, body) = request.into_parts();
        let (key, checked) = match self.layer.credential.put(&mut head, ready) {
            Ok(key) => (key, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let call = |()| self.inner.call(Request::from_parts(head, body));
        ResponseFuture::new(key, MaybeRejected::new(checked, call))
    }
}
