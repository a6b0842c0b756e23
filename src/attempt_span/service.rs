use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Span;

use super::{AttemptSpanLayer, ResponseFuture};
use crate::{
    error::{BoxError, Error, LeakedOnPanic, MaybeRejected},
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
    /// `None` if the layer adds no headers. A call then clones the service without an atomic operation.
    layer: Option<Arc<AttemptSpanLayer>>,
}

impl<S> AttemptSpan<S> {
    inner_service!();
}

impl<S> Layer<S> for AttemptSpanLayer {
    type Service = AttemptSpan<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let adds_headers = self.header.is_some() || self.propagate.is_some();
        AttemptSpan { inner, layer: adds_headers.then(|| Arc::new(self.clone())) }
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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let numbered = self.layer.as_ref().is_some_and(|layer| layer.header.is_some());
        let (sending, span, number) = Sending::begin(&request, numbered);
        if self.layer.is_some() || sending.is_observed() || !span.is_disabled() {
            return self.call_observed(request, sending, span, number);
        }
        let kept = LeakedOnPanic::new((sending, span));
        let future = MaybeRejected::Calling { future: self.inner.call(request) };
        let (sending, span) = LeakedOnPanic::into_inner(kept);
        ResponseFuture { future, span, sending }
    }
}

impl<S> AttemptSpan<S> {
    /// Adds the headers of the layer, and calls the inner service inside the span.
    #[inline(never)]
    fn call_observed<B>(
        &mut self,
        mut request: Request<B>,
        sending: Sending,
        span: Span,
        number: u32,
    ) -> ResponseFuture<S::Future>
    where
        S: Service<Request<B>>,
    {
        let mut added = Ok(());
        if let Some(header) = self.layer.as_ref().and_then(|layer| layer.header.as_ref()) {
            added = headers::insert(request.headers_mut(), &header.0, HeaderValue::from(number));
        }
        if let Some(propagate) = self.layer.as_ref().and_then(|layer| layer.propagate.as_ref()) {
            added = added.and_then(|()| headers::check_room(request.headers()));
            if added.is_ok() {
                propagate(&span, request.headers_mut());
            }
        }
        let future = match added {
            Ok(()) => span.in_scope(|| MaybeRejected::Calling { future: self.inner.call(request) }),
            Err(error) => MaybeRejected::rejected(error),
        };
        ResponseFuture { future, span, sending }
    }
}
