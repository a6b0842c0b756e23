use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{Id, ResponseFuture, layer::Settings};
use crate::{
    call::{Call, Identity},
    error::{BoxError, Error},
    observe::{self, Subject},
};

/// The service of [`RequestIdLayer`](super::RequestIdLayer).
///
/// # Errors
///
/// Only what the inner service failed with, and the [`Report`](crate::Report) added to it.
#[derive(Debug, Clone)]
pub struct RequestId<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> RequestId<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, B, R> Service<Request<B>> for RequestId<S>
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
        let settings = &self.settings;
        let own = request.extensions().get().map(|Id(id)| id.clone());
        let id = request
            .headers_mut()
            .entry(&settings.header)
            .or_insert_with(|| own.unwrap_or_else(|| settings.make.make_request_id()));
        let span = observe::call_span(settings.naming.service.as_deref(), id);
        let identity = Identity {
            naming: Arc::clone(&settings.naming),
            request_id: id.clone(),
            in_span: !span.is_disabled(),
        };
        let call = Call::identified(request.extensions_mut(), identity);
        let subject = Subject::of(&settings.naming.service, settings.level, &request, &span);
        ResponseFuture::new(call, subject, span, || self.inner.call(request))
    }
}
