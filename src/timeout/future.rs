use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::limit::{Limit, Position};
use crate::{
    call::{CallContext, Phase, StopReason},
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

/// When a request expires, and the values for its timeout error.
#[derive(Debug)]
pub(super) struct Expiry {
    pub(super) limit: Limit,
    /// When the call or the attempt started.
    pub(super) start: Instant,
    /// The deadline of the call, which is also the end of a total timeout.
    pub(super) deadline: Option<Instant>,
    pub(super) call: Option<Watched>,
    /// Created only if the request has to wait. Boxed because a timer is large, and the total timeout of a stack rarely
    /// needs one.
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

/// The call of a request. The attempt timeout watches how far the transport gets.
#[derive(Debug)]
pub(super) struct Watched {
    call: CallContext,
    is_attempt: bool,
}

impl Watched {
    pub(super) fn new(call: &CallContext, is_attempt: bool) -> Self {
        if is_attempt {
            call.begin_watch();
        }
        Self { call: call.clone(), is_attempt }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.is_attempt {
            self.call.end_watch();
        }
    }
}

impl Expiry {
    /// Returns the kind of the timeout and the time at which it expires. The time may change with the phase of the
    /// attempt: the time for the response counts from when a connection received the request, and each frame of the
    /// request's body restarts it. The wait for a connection that other requests use is limited only by the deadline.
    pub(super) fn ends(&self) -> (ErrorKind, Option<Instant>) {
        if self.limit.kind == ErrorKind::Deadline {
            return (ErrorKind::Deadline, self.deadline);
        }
        let start = match (self.phase(), &self.call) {
            (Phase::Waiting, _) => None,
            (Phase::Sent(since_start), Some(watched)) => {
                Some(clock::after(watched.call.started(), since_start))
            }
            _ => Some(self.start),
        };
        let progress = self.call.as_ref().map(|watched| watched.call.body_progress());
        let own =
            start.map(|start| clock::after(progress.unwrap_or(start).max(start), self.limit.duration()));
        match own {
            Some(own) if self.deadline.is_none_or(|deadline| own < deadline) => {
                (ErrorKind::AttemptTimeout, Some(own))
            }
            _ => (ErrorKind::Deadline, self.deadline),
        }
    }

    fn phase(&self) -> Phase {
        self.call.as_ref().map_or(Phase::Unknown, |watched| watched.call.phase())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ErrorKind> {
        let (kind, Some(ends)) = self.ends() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(ends)));
        if timer.deadline() != ends {
            timer.as_mut().reset(ends);
        }
        if let Some(watched) = self.call.as_ref().filter(|_| self.limit.position == Position::StackAttempt) {
            watched.call.set_timed();
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(kind)
    }

    /// Returns the error of a request that has expired.
    fn error(&self, kind: ErrorKind) -> Error {
        let is_sent = !matches!(self.phase(), Phase::Connecting | Phase::Waiting);
        match (kind, &self.call) {
            (ErrorKind::Deadline, Some(watched)) => {
                watched.call.end(StopReason::Deadline);
                let limit = self.deadline.map(|ends| ends.saturating_duration_since(watched.call.started()));
                let error = Error::new(kind, limit, None);
                if is_sent { error } else { error.not_sent() }
            }
            (ErrorKind::AttemptTimeout, _) if !is_sent => Error::not_connected_within(self.limit.duration()),
            _ => Error::new(kind, Some(self.own_limit(kind)), None),
        }
    }

    /// Returns the time limit that has expired. A deadline without a call counts from the start of the attempt.
    fn own_limit(&self, kind: ErrorKind) -> Duration {
        match (kind, self.deadline) {
            (ErrorKind::Deadline, Some(ends)) => ends.saturating_duration_since(self.start),
            _ => self.limit.duration(),
        }
    }

    fn is_timed_by_attempt(&self) -> bool {
        self.limit.position == Position::StackTotal
            && self.timer.is_none()
            && self.call.as_ref().is_some_and(|watched| watched.call.is_timed())
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn rejected(expiry: Expiry) -> Self {
        let (kind, _) = expiry.ends();
        Self { future: MaybeRejected::rejected(expiry.error(kind).not_sent()), expiry }
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
        // Polls the inner future before the timer, so that an available response is returned even if the task is polled
        // late.
        let mut polled = this.future.as_mut().poll(cx);
        // The timer of the stack's attempt timeout ends at the deadline at the latest.
        if polled.is_pending() && !this.expiry.is_timed_by_attempt() {
            if let Poll::Ready(kind) = this.expiry.poll(cx) {
                polled = Poll::Ready(Err(this.expiry.error(kind)));
                if let Some(watched) = &this.expiry.call {
                    // The transport then no longer uses the connection of this attempt.
                    watched.call.expire();
                }
                this.future.complete();
            }
        }
        if let (Poll::Ready(Err(error)), Some(watched)) = (&mut polled, &this.expiry.call) {
            error.add_report(&watched.call);
        }
        polled
    }
}
