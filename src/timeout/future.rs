use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::limit::{Limit, Position};
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
        pub(super) expiry: Expiry,
    }
}

thread_local! {
    /// The address of the call whose `StackAttempt` waits, so that its `StackTotal` sets no timer. `StackTotal` sets
    /// the address to 0 before and after each poll.
    static TIMED: Cell<usize> = const { Cell::new(0) };
}

/// The time at which a request expires, and the values for its timeout error.
#[derive(Debug)]
pub(super) struct Expiry {
    pub(super) timer: Timer,
    /// The limit of the layer. Its kind is `Deadline` if the deadline is not later than the end of an attempt
    /// timeout.
    pub(super) limit: Limit,
    pub(super) call: Option<CallContext>,
}

/// The time at which a request expires. The timer is created only if the request has to wait.
#[derive(Debug)]
pub(super) enum Timer {
    Unset(Instant),
    /// Boxed because a timer is large, and the total timeout of a stack rarely needs one.
    Set(Pin<Box<Sleep>>),
}

impl Timer {
    fn ends(&self) -> Instant {
        match self {
            Self::Unset(ends) => *ends,
            Self::Set(sleep) => sleep.deadline(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self {
                Self::Unset(ends) => *self = Self::Set(Box::pin(tokio::time::sleep_until(*ends))),
                Self::Set(sleep) => return sleep.as_mut().poll(cx),
            }
        }
    }
}

impl Expiry {
    /// Returns the error of a request that has expired.
    fn error(&self) -> Error {
        let limit = match (self.limit.kind, &self.call) {
            (ErrorKind::Deadline, Some(call)) => {
                call.end(StopReason::Deadline);
                self.timer.ends().saturating_duration_since(call.started())
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
        let (position, call) = (this.expiry.limit.position, this.expiry.call.as_ref());
        let address = call.map_or(0, CallContext::address);
        if position == Position::StackTotal {
            TIMED.set(0);
        }
        // Polls the inner future before the timer, so that an available response is returned even if the task is polled
        // late.
        let mut polled = this.future.as_mut().poll(cx);
        // The attempt timeout of the same stack has set a timer, which ends at the deadline at the latest.
        let is_timed = position == Position::StackTotal
            && TIMED.replace(0) == address
            && matches!(this.expiry.timer, Timer::Unset(_));
        if polled.is_pending() && !is_timed {
            if this.expiry.timer.poll(cx).is_ready() {
                polled = Poll::Ready(Err(this.expiry.error()));
                this.future.complete();
            } else if position == Position::StackAttempt {
                TIMED.set(address);
            }
        }
        if let (Poll::Ready(Err(error)), Some(call)) = (&mut polled, &this.expiry.call) {
            error.add_report(call);
        }
        polled
    }
}
