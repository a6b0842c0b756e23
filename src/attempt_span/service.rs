use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{AttemptSpanLayer, ResponseFuture};
use crate::{
    error::{BoxError, Error, MaybeRejected},
    headers,
    telemetry::Sending,
};

/// The service of [`AttemptSpanLayer`](super::AttemptSpanLayer).
///
/// # Errors
///
/// Returns the inner service's error. Returns an error with [`Error::is_invalid_request`] if the request's headers have
/// no room for the fields that this layer adds.
#[derive(Debug, Clone)]
pub struct AttemptSpan<S> {
    inner: S,
    layer: AttemptSpanLayer,
}

impl<S> AttemptSpan<S> {
    inner_service!();
}

impl<S> Layer<S> for AttemptSpanLayer {
    type Service = AttemptSpan<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AttemptSpan { inner, layer: self.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for AttemptSpan<S>
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
        let header = self.layer.header.as_ref().map(|header| &header.0);
        let (sending, span, number) = Sending::begin(&request, header.is_some());
        let mut added = Ok(());
        if let Some(header) = header {
            added = headers::insert(request.headers_mut(), header, HeaderValue::from(number));
        }
        if let Some(propagate) = &self.layer.propagate {
            added = added.and_then(|()| headers::check_room(request.headers()));
            if added.is_ok() {
                propagate(&span, request.headers_mut());
            }
        }
        ResponseFuture::new(sending, span, || MaybeRejected::new(added, |()| self.inner.call(request)))
    }
}
