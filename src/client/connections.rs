use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use tower_service::Service;

use crate::body::{Body, ReplayBody};

#[cfg(feature = "rustls")]
pub(super) type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "rustls"))]
pub(super) type Connector = HttpConnector;

/// hyper-util's client behind a pointer, because the layers clone their inner service for each call, and the client holds
/// its settings by value.
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
