use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Response, StatusCode};
use pin_project_lite::pin_project;

use super::refresh::Watch;
use crate::{
    call::KeyReplaced,
    error::{BoxError, Error, MaybeRejected},
    policy::grpc::Code,
};

pin_project! {
    /// The future of [`Auth`](super::Auth).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: MaybeRejected<F>,
        watch: Option<Watch>,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn calling(watch: Option<Watch>, call: impl FnOnce() -> F) -> Self {
        Self { watch, future: MaybeRejected::calling(call) }
    }

    pub(super) fn failed(error: Error) -> Self {
        Self { watch: None, future: MaybeRejected::rejected(error) }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // First, because a service that responds immediately would never let the refresh begin.
        if let Some(watch) = this.watch {
            watch.drive(cx);
        }
        let mut result = ready!(this.future.poll(cx));
        if let (Ok(response), Some(watch)) = (&mut result, this.watch) {
            watch.hide_ids(response.headers_mut());
            if watch.changes() && refuses_the_key(response) && watch.reject() {
                response.extensions_mut().insert(KeyReplaced);
            }
        }
        Poll::Ready(result)
    }
}

/// By HTTP's word, or by gRPC's in a head that is the whole answer.
fn refuses_the_key<R>(response: &Response<R>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED
        || Code::in_head(response.headers()) == Some(Code::UNAUTHENTICATED)
}
