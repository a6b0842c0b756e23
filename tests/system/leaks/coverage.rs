//! Checks that values of public types do not show the key.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, header::AUTHORIZATION};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::BoxError;

use super::*;
use crate::support::{Content, get};

pub(super) const URI: &str = "https://host/v1";

#[track_caller]
pub(super) fn check_debug_and_display<T: Debug + Display>(value: &T) {
    check_debug(value);
    check_display(value);
}

/// Makes calls whose requests contain the key. Checks the layer, its service, the future of each call and the result of
/// each call.
pub(super) fn check_layer<L, S, R>(layer: L)
where
    L: Layer<VerboseService, Service = S> + Debug,
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError> + Debug> + Clone + Debug,
    S::Future: Debug,
    R: Debug,
{
    check_debug(&layer);
    let request = || {
        let mut request = get(&format!("{URI}?api_key=redacted"));
        request.headers_mut().insert(AUTHORIZATION, key().header_value());
        request
    };
    for responds in [false, true] {
        let mut service = layer.layer(VerboseService { responds });
        check_debug(&service);
        let Poll::Ready(ready) = task::spawn(service.ready()).poll() else { panic!("not ready") };
        let future = ready.unwrap().call(request());
        check_debug(&future);
        let mut future = task::spawn(future);
        match future.poll() {
            Poll::Ready(Ok(response)) => check_response(&response, response.extensions()),
            Poll::Ready(Err(error)) => check_error_chain(&*error.into()),
            Poll::Pending => check_debug(&future),
        }
    }
}

/// An inner service whose futures show the request in `Debug`, except the request's URI. The service responds with 401
/// or never responds.
#[derive(Debug, Clone)]
pub(super) struct VerboseService {
    responds: bool,
}

pub(super) struct VerboseFuture<B> {
    request: Request<B>,
    responds: bool,
}

impl<B> Service<Request<B>> for VerboseService {
    type Response = Response<Content>;
    type Error = BoxError;
    type Future = VerboseFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> VerboseFuture<B> {
        VerboseFuture { request, responds: self.responds }
    }
}

impl<B> Future for VerboseFuture<B> {
    type Output = Result<Response<Content>, BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.responds {
            return Poll::Pending;
        }
        Poll::Ready(Ok(Response::builder().status(401).body(Content::default())?))
    }
}

impl<B> Debug for VerboseFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VerboseFuture").field(self.request.headers()).field(self.request.extensions()).finish()
    }
}
