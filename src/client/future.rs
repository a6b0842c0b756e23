use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;

use super::stack::Called;
use crate::{body::Body, error::Error};

/// The future of a [`Client`](super::Client)'s call.
pub struct ResponseFuture(State);

enum State {
    Calling(Called),
    Failed(Option<Error>),
}

impl ResponseFuture {
    pub(super) fn calling(future: Called) -> Self {
        Self(State::Calling(future))
    }

    pub(super) fn failed(error: Error) -> Self {
        Self(State::Failed(Some(error)))
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<Body>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Calling(future) => future.as_mut().poll(cx),
            State::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("client::ResponseFuture").finish_non_exhaustive()
    }
}
