use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{ResponseFuture, layer::Settings};
use crate::{
    call::Call,
    clock,
    error::{BoxError, Error},
    id,
    log::Subject,
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
        let call = Call::of(request.extensions_mut());
        let id = request
            .headers_mut()
            .entry(&self.settings.header)
            .or_insert_with(|| id::uuid_v7(&self.settings.random));
        call.set_request_id(id.clone(), &self.settings.server_headers);
        let subject = Subject {
            service: self.settings.service,
            method: request.method().clone(),
            uri: request.uri().clone(),
            started: clock::now(),
        };
        ResponseFuture::new(self.inner.call(request), call, subject)
    }
}
