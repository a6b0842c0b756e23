use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::error::{BoxError, Error, MaybeRejected};

pin_project! {
    /// A future whose span is current while the future is polled and dropped, like `tracing::Instrumented`.
    #[derive(Debug)]
    pub(crate) struct InSpan<F> {
        #[pin]
        pub(crate) future: MaybeRejected<F>,
        pub(crate) span: Span,
    }

    impl<F> PinnedDrop for InSpan<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let _entered = this.span.enter();
            this.future.complete();
        }
    }
}

impl<F, R, E> Future for InSpan<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        this.future.poll(cx)
    }
}
