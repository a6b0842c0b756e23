use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::Span;

use super::{BoxError, Error};

/// Panics. A future calls this function if it is polled again after it has completed. Futures of tower panic in the
/// same case.
#[cold]
#[expect(clippy::panic, reason = "only a caller's mistake causes this panic")]
pub(crate) fn polled_after_completion() -> ! {
    panic!("future polled after completion")
}

/// Takes the value that a future stores. Panics if the value was already taken.
pub(crate) fn take_once<T>(slot: &mut Option<T>) -> T {
    slot.take().unwrap_or_else(|| polled_after_completion())
}

pin_project! {
    /// The future of a service that may reject a request before it calls the inner service. After it completes, the
    /// future is in the state `Rejected` without an error.
    #[project = StateProj]
    #[derive(Debug)]
    pub enum MaybeRejected<F> {
        Calling { #[pin] future: F },
        Rejected { error: Option<Error> },
    }
}

impl<F> MaybeRejected<F> {
    pub(crate) fn rejected(error: Error) -> Self {
        Self::Rejected { error: Some(error) }
    }

    /// Drops the inner future inside `span`, unless the future has completed.
    pub(crate) fn drop_in(self: Pin<&mut Self>, span: &Span) {
        if !matches!(*self, Self::Rejected { error: None }) {
            let _entered = span.enter();
            self.complete();
        }
    }

    /// Drops the inner future. Polling the future after that panics.
    pub(crate) fn complete(mut self: Pin<&mut Self>) {
        self.set(Self::Rejected { error: None });
    }
}

impl<F, R, E> Future for MaybeRejected<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project() {
            StateProj::Calling { future } => {
                let result = ready!(future.poll(cx));
                self.complete();
                Poll::Ready(result.map_err(Error::from_service))
            }
            StateProj::Rejected { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => polled_after_completion(),
            },
        }
    }
}
