use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;

use crate::{
    body::Body,
    error::{Error, MaybeRejected},
};

/// The future of the stack.
pub(super) type Called = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// The future of a [`Client`](super::Client)'s call.
pub struct ResponseFuture(MaybeRejected<Called>);

impl ResponseFuture {
    pub(super) fn calling(future: Called) -> Self {
        Self(MaybeRejected::calling(|| future))
    }

    pub(super) fn failed(error: Error) -> Self {
        Self(MaybeRejected::rejected(error))
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<Body>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("client::ResponseFuture").finish_non_exhaustive()
    }
}
