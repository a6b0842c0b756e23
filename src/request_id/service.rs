use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Level;

use super::{RequestId, RequestIdLayer, ResponseFuture, future::Started};
use crate::{
    body::BrokenBody,
    call::{CallContext, Identity, extension_beside},
    error::{BoxError, Error, LeakedOnPanic, MaybeRejected},
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

    #[inline(never)]
    fn call_started<B>(&mut self, request: Request<B>, started: Started) -> ResponseFuture<S::Future>
    where
        S: Service<Request<B>>,
    {
        let started = LeakedOnPanic::new(started);
        let future = MaybeRejected::Calling { future: self.inner.call(request) };
        ResponseFuture::new(future, LeakedOnPanic::into_inner(started))
    }
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let (started, added) = self.layer.start(&mut request);
        if let Err(error) = added {
            return ResponseFuture::new(MaybeRejected::rejected(error), started);
        }
        if !started.span.is_disabled() {
            let future =
                started.span.in_scope(|| MaybeRejected::Calling { future: self.inner.call(request) });
            return ResponseFuture::new(future, started);
        }
        self.call_started(request, started)
    }
}

impl RequestIdLayer {
    /// Starts a call. Returns an error if the id does not fit into the request's headers.
    fn start<B>(&self, request: &mut Request<B>) -> (Started, Result<(), Error>) {
        let own = request.extensions().get().map(|RequestId(id)| id.clone());
        let id = || own.clone().unwrap_or_else(|| (self.make)());
        let (id, added) = match headers::get_or_insert_with(request.headers_mut(), self.header(), id) {
            Ok(sent) => {
                let id = sent.clone();
                headers::mark_unique(sent);
                (id, Ok(()))
            }
            Err(error) => (id(), Err(error)),
        };
        let span = telemetry::call_span(self.has_info_spans, self.naming.service.as_deref(), &id, request);
        let identity = Identity {
            naming: Arc::clone(&self.naming),
            request_id: id,
            in_span: !span.is_disabled(),
            shows_attempt: self.level <= Level::INFO && telemetry::joins_attempt(),
        };
        let call = CallContext::identified(request.extensions_mut(), identity);
        if self.has_info_spans {
            call.raise_spans();
        }
        let continues = extension_beside::<BrokenBody>(Some(&call), request.extensions()).is_some();
        let subject = Subject::of(self.level, request, &span, continues.then_some(&call));
        (Started { span, call, subject }, added)
    }
}
