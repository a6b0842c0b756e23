use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper_util::client::legacy;
use tower_service::Service;

use super::connect::Connector;
use crate::{
    body::{Body, ReplayBody},
    error::Error,
};

pub(super) type Called = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// The whole stack behind one type: a call costs one box, that of its future.
pub(super) trait Stack: Send + Sync {
    fn begin(&self, request: Request<Body>) -> Called;
}

/// For a stack that is always ready: retry waits for the service below it in its future.
impl<S> Stack for S
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Error> + Clone + Send + Sync,
    S::Future: Send + 'static,
{
    fn begin(&self, request: Request<Body>) -> Called {
        Box::pin(self.clone().call(request))
    }
}

/// hyper-util's client behind a pointer: the layers clone what is below them for each call, and it holds its settings
/// by value.
#[derive(Clone)]
pub(super) struct Connections(pub(super) Arc<legacy::Client<Connector, ReplayBody<Body>>>);

impl Service<Request<ReplayBody<Body>>> for Connections {
    type Response = Response<hyper::body::Incoming>;
    type Error = legacy::Error;
    type Future = legacy::ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), legacy::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReplayBody<Body>>) -> Self::Future {
        self.0.request(request)
    }
}
