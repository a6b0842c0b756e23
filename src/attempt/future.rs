use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::{Instrument, Span, instrument::Instrumented};

use crate::{
    call::Call,
    clock,
    error::{BoxError, Error},
    log,
};

pin_project! {
    /// The future of [`Attempt`](super::Attempt).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: Instrumented<F>,
        // Whose deadline may cut the attempt off; none when it has ended, or nobody would hear of it.
        call: Option<Call>,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        // Dropped by its caller an attempt did not fail; by the layer that keeps the deadline it did.
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let deadline = this.call.as_ref().and_then(Call::deadline);
            if deadline.is_some_and(|deadline| clock::now() >= deadline) {
                log::cut_off(this.future.span());
            }
        }
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn new(future: F, span: Span, call: Option<Call>) -> Self {
        Self { future: future.instrument(span), call }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let result = ready!(this.future.as_mut().poll(cx)).map_err(Error::from_service);
        log::end_attempt(this.future.span(), result.as_ref().map(Response::status));
        *this.call = None;
        Poll::Ready(result)
    }
}
