use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::Either;
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{ApiKey, AuthLayer, KeyError, Origin, ResponseFuture, credential::Credential, refresh::Refresh};
use crate::{
    call::Chosen,
    error::{BoxError, Error, MaybeRejected},
};

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
    layer: Arc<AuthLayer>,
    ready: Readiness,
}

/// The key with which the service is ready. A call takes the key out of the service.
#[derive(Debug, Default)]
enum Readiness {
    #[default]
    NotPolled,
    /// If a permit expires during this wait, the rate limit layer acquires another permit. The future is boxed because
    /// each call clones the service, and most keys are available immediately.
    Refreshing(Box<Refresh>),
    Ready(Result<ApiKey, KeyError>),
    /// The readiness of each member of a pool. Its request goes to one of them, which is not known before the call.
    Members(Vec<Readiness>),
}

impl Readiness {
    /// Waits until the key source of the layer, or that of each member of a pool, has a key or has failed.
    fn poll(&mut self, layer: &AuthLayer, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(layers) = &layer.members {
            if let Self::NotPolled = self {
                *self = Self::Members(layers.iter().map(|_| Self::NotPolled).collect());
            }
            let Self::Members(members) = self else { return Poll::Ready(()) };
            let polled = layers.iter().zip(members).map(|(layer, member)| member.poll(layer, cx));
            return if polled.filter(Poll::is_pending).count() > 0 { Poll::Pending } else { Poll::Ready(()) };
        }
        if let Credential::Changing(changing) = &*layer.credential {
            if let Self::NotPolled = self {
                *self = match changing.keys.lease() {
                    Either::Left(key) => Self::Ready(key.into_inner()),
                    Either::Right(refresh) => Self::Refreshing(Box::new(refresh)),
                };
            }
            if let Self::Refreshing(refresh) = self {
                *self = Self::Ready(ready!(Pin::new(refresh).poll(cx)));
            }
        }
        Poll::Ready(())
    }
}

impl<S> Auth<S> {
    inner_service!();

    /// Calls the inner service with a request that has no replaceable key. Not inlined, so that the compiler constructs
    /// the future in its final place.
    #[inline(never)]
    fn call_inner<B>(&mut self, request: Request<B>) -> ResponseFuture<S::Future>
    where
        S: Service<Request<B>>,
    {
        ResponseFuture { future: MaybeRejected::Calling { future: self.inner.call(request) }, key: None }
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Auth { inner, layer: Arc::new(self.clone()), ready: Readiness::NotPolled }
    }
}

impl<S: Clone> Clone for Auth<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: Arc::clone(&self.layer), ready: Readiness::NotPolled }
    }
}

/// Returns the error for a request that already has a credential. A pool could send it to the wrong member.
fn own_credential() -> Error {
    Error::invalid_request(
        "the request already has a credential, but the pool adds the credential of the chosen member",
    )
}

impl<S, B, R> Service<Request<B>> for Auth<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.ready.poll(&self.layer, cx));
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Takes the key out of the service. Before the next request, the service must become ready again, with a
        // current key.
        let is_member = self.layer.members.is_some();
        let (mut layer, mut ready) = (&*self.layer, mem::take(&mut self.ready));
        if let Some(layers) = &layer.members {
            let index = request.extensions().get().map_or(0, |chosen: &Chosen| chosen.index);
            layer = layers.get(index).unwrap_or(layer);
            if let Readiness::Members(members) = &mut ready {
                ready = members.get_mut(index).map(mem::take).unwrap_or_default();
            }
        }
        let ready = match ready {
            Readiness::Ready(key) => Some(key),
            _ => None,
        };
        let put = match (Origin::any_covers(&layer.origins, request.uri()), &*layer.credential) {
            (Ok(false), _) => Ok(None),
            (Ok(true), Credential::Hook(hook)) => {
                let (mut head, body) = request.into_parts();
                let put = hook.put(&mut head);
                request = Request::from_parts(head, body);
                put.map(|()| None)
            }
            (Ok(true), Credential::Fixed(fixed)) => match fixed.put(&mut request) {
                Ok(false) if is_member => Err(own_credential()),
                put => put.map(|_| None),
            },
            (Ok(true), Credential::Changing(changing)) => match changing.put(&mut request, ready) {
                Ok(None) if is_member => Err(own_credential()),
                put => put,
            },
            (Err(error), _) => Err(error),
        };
        match put {
            Ok(None) => self.call_inner(request),
            Ok(Some(key)) => {
                let future = MaybeRejected::Calling { future: self.inner.call(request) };
                ResponseFuture { future, key: Some(key) }
            }
            Err(error) => ResponseFuture { future: MaybeRejected::rejected(error), key: None },
        }
    }
}
