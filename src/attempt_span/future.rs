use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use crate::{
    error::{BoxError, Error},
    telemetry::{InSpan, ResponseSummary, Sending},
};

pin_project! {
    /// The future of [`AttemptSpan`](super::AttemptSpan).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(super) future: InSpan<F>,
        pub(super) sending: Sending,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.sending.dropped(&this.future.span);
        }
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
        let result = ready!(this.future.as_mut().poll(cx));
        this.sending.ended(&this.future.span, result.as_ref().map(ResponseSummary::of));
        Poll::Ready(result)
    }
}
