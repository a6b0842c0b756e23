use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tracing::Span;

use crate::error::polled_after_completion;

pin_project! {
    /// A future whose span is current while the future is polled and dropped, like `tracing::Instrumented`.
    #[derive(Debug)]
    pub(crate) struct InSpan<F> {
        // The future. `None` after it was dropped.
        #[pin]
        pub(crate) future: Option<F>,
        pub(crate) span: Span,
    }

    impl<F> PinnedDrop for InSpan<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = this.span.enter();
            this.future.set(None);
        }
    }
}

impl<F> InSpan<F> {
    #[inline]
    pub(crate) fn new(span: Span, future: F) -> Self {
        Self { span, future: Some(future) }
    }
}

impl<F: Future> Future for InSpan<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        let Some(future) = this.future.as_pin_mut() else { polled_after_completion() };
        future.poll(cx)
    }
}
