use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tracing::Span;

use crate::error::polled_after_completion;

pin_project! {
    /// A future whose span is current when it is polled and when it is dropped. As `tracing::Instrumented`, but made in
    /// its place: the future of a whole stack is 2 KB, and each move of it costs as much as a layer.
    #[derive(Debug)]
    pub(crate) struct Within<F> {
        #[pin]
        future: Option<F>,
        span: Span,
    }

    impl<F> PinnedDrop for Within<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = this.span.enter();
            this.future.set(None);
        }
    }
}

impl<F> Within<F> {
    /// Of the future that `make` makes within the span.
    #[inline]
    pub(crate) fn new(span: Span, make: impl FnOnce() -> F) -> Self {
        let future = {
            let _entered = span.enter();
            Some(make())
        };
        Self { span, future }
    }

    /// The same of a span that is disabled, and not in the way then.
    #[inline]
    pub(crate) fn disabled(span: Span, make: impl FnOnce() -> F) -> Self {
        Self { span, future: Some(make()) }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        match this.future.as_pin_mut() {
            Some(future) => future.poll(cx),
            // The drop of the whole future takes it.
            None => polled_after_completion(),
        }
    }
}
