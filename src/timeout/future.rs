use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::{
    call::{CallContext, StopReason},
    clock::Instant,
    error::{BoxError, Error, ErrorKind, MaybeRejected},
};

pin_project! {
    /// The future of [`Timeout`](super::Timeout).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(super) future: MaybeRejected<F>,
        #[pin]
        pub(super) timer: Option<Sleep>,
        pub(super) expiry: Expiry,
    }
}

/// The time at which a request expires, and the values for its timeout error.
#[derive(Debug)]
pub(super) struct Expiry {
    pub(super) ends: Instant,
    pub(super) kind: ErrorKind,
    pub(super) limit: Duration,
    pub(super) call: Option<CallContext>,
}

impl Expiry {
    fn error(&self) -> Error {
        let limit = match (self.kind, &self.call) {
            (ErrorKind::Deadline, Some(call)) => {
                call.end(StopReason::Deadline);
                self.ends.saturating_duration_since(call.started())
            }
            _ => self.limit,
        };
        Error::new(self.kind, Some(limit), None)
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn rejected(expiry: Expiry) -> Self {
        Self { future: MaybeRejected::rejected(expiry.error()), timer: None, expiry }
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
        let reported = |error: Error| match &this.expiry.call {
            Some(call) => error.reported(call),
            None => error,
        };
        // Polls the inner future before the timer, so that an available response is returned even if the task is polled
        // late.
        if let Poll::Ready(result) = this.future.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(reported));
        }
        if this.timer.is_none() {
            this.timer.set(Some(tokio::time::sleep_until(this.expiry.ends)));
        }
        if let Some(timer) = this.timer.as_pin_mut() {
            ready!(timer.poll(cx));
        }
        let error = reported(this.expiry.error());
        this.future.complete();
        Poll::Ready(Err(error))
    }
}
