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
    call::{Call, Ended},
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
        bound: Bound,
        call: Option<Call>,
        // It has told its end, and has no second one.
        over: bool,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if this.timer.is_some() {
                this.bound.let_go(this.call.as_ref());
            }
        }
    }
}

/// When time is over, and what it is the time of.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) ends: Instant,
    /// What the error names.
    pub(super) scope: Scope,
    /// Which layer it is.
    pub(super) layer: Scope,
    pub(super) limit: Duration,
}

impl Bound {
    /// Whether it needs a timer now. An attempt's goes off at the call's deadline at the latest, and while there is one
    /// the deadline needs none of its own.
    fn needs_timer(&self, call: Option<&Call>) -> bool {
        self.layer == Scope::Attempt || !call.is_some_and(|call| call.is_watched(self.ends))
    }

    /// It has a timer from here on.
    fn keep(&self, call: Option<&Call>) {
        if let (Scope::Attempt, Some(call)) = (self.layer, call) {
            call.watch(self.ends);
        }
    }

    /// It has none any more.
    fn let_go(&self, call: Option<&Call>) {
        if let (Scope::Attempt, Some(call)) = (self.layer, call) {
            call.unwatch();
        }
    }
}

impl<F> ResponseFuture<F> {
    /// Of the future that `make` makes, which is none when time is over before it begins.
    #[inline]
    pub(super) fn new(bound: Bound, call: Option<Call>, make: impl FnOnce() -> Option<F>) -> Self {
        Self { timer: None, bound, call, future: make(), over: false }
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
        let call = this.call.as_ref();
        // The work before the timer: an answer that is there counts, however late the task got its turn.
        if let Some(Poll::Ready(result)) = this.future.as_mut().as_pin_mut().map(|future| future.poll(cx)) {
            if this.timer.is_some() {
                this.timer.set(None);
                this.bound.let_go(call);
            }
            *this.over = true;
            return Poll::Ready(result.map_err(Error::from_service));
        }
        if this.future.is_some() && this.timer.is_none() {
            if !this.bound.needs_timer(call) {
                return Poll::Pending;
            }
            this.timer.set(Some(tokio::time::sleep_until(this.bound.ends)));
            this.bound.keep(call);
        }
        if let Some(timer) = this.timer.as_pin_mut() {
            ready!(timer.poll(cx));
        }
        *this.over = true;
        let Bound { ends, scope, limit, .. } = this.bound;
        let limit = match (*scope, call) {
            (Scope::Call, Some(call)) => {
                call.end(Ended::Deadline);
                ends.saturating_duration_since(call.started())
            }
            _ => *limit,
        };
        let error = Error::timeout(*scope, limit);
        Poll::Ready(Err(match call {
            Some(call) => error.with_report(call.report()),
            None => error,
        }))
    }
}
