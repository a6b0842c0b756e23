use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::limit::Limit;
use crate::{
    call::{CallContext, StopReason},
    clock::{self, Instant},
    error::{BoxError, Error, ErrorKind, MaybeRejected},
};

pin_project! {
    /// The future of [`Timeout`](super::Timeout).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(super) future: MaybeRejected<F>,
        pub(super) expiry: Expiry,
    }
}

thread_local! {
    /// The identity of the call whose attempt timeout last returned `Pending`, or 0.
    static TIMED: Cell<usize> = const { Cell::new(0) };
}

/// The time at which a request expires, and the values for its timeout error.
#[derive(Debug)]
pub(super) struct Expiry {
    pub(super) timer: Timer,
    /// The limit of the layer. Its kind is `Deadline` if the deadline is earlier than the end of an attempt timeout.
    pub(super) limit: Limit,
    pub(super) call: Option<CallContext>,
}

/// The time at which a request expires. The timer is created only if the request has to wait.
#[derive(Debug)]
pub(super) enum Timer {
    /// The time of an attempt counts from the first time that the attempt has to wait.
    Unstarted,
    Unset(Instant),
    /// Boxed because a timer is large, and the total timeout of a stack rarely needs one.
    Set(Pin<Box<Sleep>>),
}

impl Expiry {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.timer {
                Timer::Unstarted => {
                    let deadline = self.call.as_ref().and_then(CallContext::deadline);
                    let (limit, ends) = self.limit.end(clock::now(), deadline);
                    (self.limit, self.timer) = (limit, Timer::Unset(ends));
                }
                Timer::Unset(ends) => self.timer = Timer::Set(Box::pin(tokio::time::sleep_until(*ends))),
                Timer::Set(sleep) => return sleep.as_mut().poll(cx),
            }
        }
    }

    fn reported(&self, error: Error) -> Error {
        match &self.call {
            Some(call) => error.reported(call),
            None => error,
        }
    }

    /// Returns the error of a request that has expired.
    fn error(&self) -> Error {
        let limit = match (self.limit.kind, &self.call) {
            (ErrorKind::Deadline, Some(call)) => {
                call.end(StopReason::Deadline);
                let ends = match &self.timer {
                    Timer::Unstarted => call.started(),
                    Timer::Unset(ends) => *ends,
                    Timer::Set(sleep) => sleep.deadline(),
                };
                ends.saturating_duration_since(call.started())
            }
            _ => self.limit.duration(),
        };
        Error::new(self.limit.kind, Some(limit), None)
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn rejected(expiry: Expiry) -> Self {
        Self { future: MaybeRejected::rejected(expiry.error()), expiry }
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
        let identity = this.expiry.call.as_ref().map_or(0, CallContext::identity);
        TIMED.set(0);
        // Polls the inner future before the timer, so that an available response is returned even if the task is polled
        // late.
        if let Poll::Ready(result) = this.future.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(|error| this.expiry.reported(error)));
        }
        // The attempt timeout of this call has set a timer that ends at the deadline at the latest.
        if this.expiry.limit.is_in_stack
            && matches!(this.expiry.timer, Timer::Unset(_))
            && TIMED.get() == identity
        {
            return Poll::Pending;
        }
        if this.expiry.poll(cx).is_pending() {
            TIMED.set(identity);
            return Poll::Pending;
        }
        let error = this.expiry.reported(this.expiry.error());
        this.future.complete();
        Poll::Ready(Err(error))
    }
}
