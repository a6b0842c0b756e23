use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::{
    error::{BoxError, Error, MaybeRejected},
    telemetry::{ResponseSummary, Sending},
};

pin_project! {
    /// The future of [`AttemptSpan`](super::AttemptSpan).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(super) future: MaybeRejected<F>,
        // The span is current while the future is polled and dropped, as in `tracing::Instrumented`.
        pub(super) span: Span,
        pub(super) sending: Sending,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.sending.dropped(this.span);
            this.future.drop_in(this.span);
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
        let this = self.project();
        let entered = this.span.enter();
        let result = ready!(this.future.poll(cx));
        drop(entered);
        this.sending.ended(this.span, result.as_ref().map(ResponseSummary::of));
        Poll::Ready(result)
    }
}
