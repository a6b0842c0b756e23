use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use pin_project_lite::pin_project;

use super::{BoxError, Error};

/// Panics. A future calls this function if it is polled again after it has completed. Futures of tower panic in the
/// same case.
#[cold]
#[expect(clippy::panic, reason = "only a caller's mistake causes this panic")]
pub(crate) fn polled_after_completion() -> ! {
    panic!("future polled after completion")
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
    /// Calls the inner service if `checked` is `Ok`. Otherwise returns the error.
    #[inline]
    pub(crate) fn new<T>(checked: Result<T, Error>, call: impl FnOnce(T) -> F) -> Self {
        match checked {
            Ok(checked) => Self::Calling { future: call(checked) },
            Err(error) => Self::Rejected { error: Some(error) },
        }
    }

    /// Drops the inner future. Polling the future after that panics.
    #[inline]
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

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project() {
            StateProj::Calling { future } => {
                let polled = future.poll(cx).map_err(Error::from_service);
                if polled.is_ready() {
                    self.complete();
                }
                polled
            }
            StateProj::Rejected { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => polled_after_completion(),
            },
        }
    }
}
