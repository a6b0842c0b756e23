use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderValue, Request, Response};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Span;

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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let layer = self.layer.as_deref();
        let numbered = layer.is_some_and(|layer| layer.header.is_some());
        let (sending, span, number) = Sending::begin(&request, numbered);
        let added = layer.map_or(Ok(()), |layer| layer.add_headers(request.headers_mut(), &span, number));
        let future = match added {
            Ok(()) => span.in_scope(|| MaybeRejected::Calling { future: self.inner.call(request) }),
            Err(error) => MaybeRejected::rejected(error),
        };
        ResponseFuture { future, span, sending }
    }
}

impl AttemptSpanLayer {
    fn add_headers(&self, headers: &mut HeaderMap, span: &Span, number: u32) -> Result<(), Error> {
        if let Some(header) = &self.header {
            headers::insert(headers, &header.0, HeaderValue::from(number))?;
        }
        if let Some(propagate) = &self.propagate {
            headers::check_room(headers)?;
            propagate(span, headers);
        }
        Ok(())
    }
}
