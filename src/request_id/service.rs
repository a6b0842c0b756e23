use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Level;

use super::{RequestId, RequestIdLayer, ResponseFuture};
use crate::{
    body::BrokenBody,
    call::{CallContext, Identity, extension_beside},
    error::{BoxError, Error, MaybeRejected},
    headers,
    telemetry::{self, Subject},
};

/// The service of [`RequestIdLayer`](super::RequestIdLayer).
///
/// # Errors
///
/// Returns the inner service's error, with the [`Report`](crate::Report) of the call. Returns an error with
/// [`Error::is_invalid_request`] if the request's headers have no room for another field.
#[derive(Debug, Clone)]
pub struct SetRequestId<S> {
    inner: S,
    layer: Arc<RequestIdLayer>,
}

impl<S> SetRequestId<S> {
    inner_service!();
}

impl<S> Layer<S> for RequestIdLayer {
    type Service = SetRequestId<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SetRequestId { inner, layer: Arc::new(self.clone()) }
    }
}

impl<S, B, R> Service<Request<B>> for SetRequestId<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    // Not inlined, so that the compiler constructs the future in its final place.
    #[inline(never)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let layer = &self.layer;
        let own = request.extensions().get().map(|RequestId(id)| id.clone());
        let id = || own.clone().unwrap_or_else(|| (layer.make)());
        let (id, added) = match headers::get_or_insert_with(request.headers_mut(), layer.header(), id) {
            Ok(sent) => {
                let id = sent.clone();
                headers::mark_unique(sent);
                (id, Ok(()))
            }
            // The id does not fit into the request's headers.
            Err(error) => (id(), Err(error)),
        };
        let span = telemetry::call_span(layer.has_info_spans, layer.naming.service.as_deref(), &id, &request);
        let identity = Identity {
            naming: Arc::clone(&layer.naming),
            request_id: id,
            in_span: !span.is_disabled(),
            shows_attempt: layer.level <= Level::INFO && telemetry::joins_attempt(),
        };
        let (call, has_another_id) = CallContext::identified(request.extensions_mut(), identity);
        if has_another_id {
            telemetry::request_id_inside_retry(&call, &layer.order_warning);
        }
        if layer.has_info_spans {
            call.raise_spans();
        }
        let continues = extension_beside::<BrokenBody>(Some(&call), request.extensions()).is_some();
        let subject = Subject::of(layer.level, &request, &span, continues);
        match added {
            Ok(()) => {
                let entered = span.enter();
                let future = self.inner.call(request);
                drop(entered);
                ResponseFuture { future: MaybeRejected::Calling { future }, span, call, subject }
            }
            Err(error) => ResponseFuture { future: MaybeRejected::rejected(error), span, call, subject },
        }
    }
}
