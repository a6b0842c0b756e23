use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::{
    error::{BoxError, Error, MaybeRejected},
    telemetry::{InSpan, ResponseSummary, Sending},
};

pin_project! {
    /// The future of [`AttemptSpan`](super::AttemptSpan).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: InSpan<MaybeRejected<F>>,
        sending: Sending,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.sending.dropped(&this.future.span);
        }
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(sending: Sending, span: Span, make: impl FnOnce() -> MaybeRejected<F>) -> Self {
        match span.is_disabled() {
            true => Self { sending, future: InSpan::disabled(span, make) },
            false => Self { sending, future: InSpan::new(span, make) },
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
