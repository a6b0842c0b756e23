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
    error::{BoxError, Error, Scope},
};

pin_project! {
    /// The future of [`Timeout`](super::Timeout).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        // None when time was over before it began.
        #[pin]
        future: Option<F>,
        #[pin]
        timer: Option<Sleep>,
        ends: Instant,
        scope: Scope,
        limit: Duration,
        call: Option<CallContext>,
        // It has told its end, and has no second one.
        over: bool,
    }
}

impl<F> ResponseFuture<F> {
    /// Of the future that `make` makes, which is none when time is over before it begins.
    #[inline]
    pub(super) fn new(
        ends: Instant,
        scope: Scope,
        limit: Duration,
        call: Option<CallContext>,
        make: impl FnOnce() -> Option<F>,
    ) -> Self {
        Self { timer: None, ends, scope, limit, call, over: false, future: make() }
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
        if *this.over {
            return Poll::Pending;
        }
        // The work before the timer: an answer that is there counts, however late the task got its turn.
        if let Some(Poll::Ready(result)) = this.future.as_mut().as_pin_mut().map(|future| future.poll(cx)) {
            *this.over = true;
            return Poll::Ready(
                result.map_err(|error| reported(Error::from_service(error), this.call.as_ref())),
            );
        }
        if this.future.is_some() && this.timer.is_none() {
            this.timer.set(Some(tokio::time::sleep_until(*this.ends)));
        }
        if let Some(timer) = this.timer.as_pin_mut() {
            ready!(timer.poll(cx));
        }
        *this.over = true;
        let limit = match (*this.scope, this.call.as_ref()) {
            (Scope::Call, Some(call)) => {
                call.end(StopReason::Deadline);
                this.ends.saturating_duration_since(call.started())
            }
            _ => *this.limit,
        };
        Poll::Ready(Err(reported(Error::timeout(*this.scope, limit), this.call.as_ref())))
    }
}

fn reported(error: Error, call: Option<&CallContext>) -> Error {
    match call {
        Some(call) => error.reported(call),
        None => error,
    }
}
