use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{Feedback, Limiter, PermitRequest, Refusal};
use crate::{
    call::CallContext,
    clock::{self, Instant},
    error::{BoxError, Error},
    telemetry::{self, Waiting},
};

pin_project! {
    /// The future of [`RateLimit`](super::RateLimit): waits for the permit, readies the inner service, calls it.
    pub struct ResponseFuture<S: Service<Request<B>>, L: Limiter, B> {
        #[pin]
        state: State<Request<B>, L::Acquire, S::Future>,
        inner: S,
        permits: Option<Permits<L>>,
        call: Option<CallContext>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<Q, A, F> {
        // The request is where its call will be: none once it was given away.
        Before { request: Option<Q>, #[pin] step: Step<A> },
        Refused { refusal: Option<Refusal> },
        Calling { #[pin] future: F },
    }
}

pin_project! {
    #[project = StepProj]
    enum Step<A> {
        // Not polled yet. Most get their permits at the first poll, and need no future for a wait.
        Asking,
        // The clock is read only for a request that has to wait.
        Acquiring { #[pin] acquire: A, waiting: Option<Waiting>, renewed: bool },
        Readying { since: Option<Instant> },
    }
}

impl<A> Step<A> {
    fn acquiring(acquire: A, renewed: bool) -> Self {
        Self::Acquiring { acquire, waiting: None, renewed }
    }
}

impl<S: Service<Request<B>>, L: Limiter, B> ResponseFuture<S, L, B> {
    pub(super) fn new(inner: S, permits: Permits<L>, request: Request<B>, call: Option<CallContext>) -> Self {
        let state = State::Before { request: Some(request), step: Step::Asking };
        Self { inner, call, permits: Some(permits), state }
    }

    /// For a request that no limiter takes.
    pub(super) fn refused(refusal: Refusal, inner: S, call: Option<CallContext>) -> Self {
        let state = State::Refused { refusal: Some(refusal) };
        Self { state, inner, permits: None, call }
    }
}

fn refused(call: Option<&CallContext>, refusal: Refusal) -> Error {
    telemetry::refused(call, &refusal);
    Error::refused(refusal)
}

impl<S, L, B, R> Future for ResponseFuture<S, L, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    L: Limiter,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (request, mut step) = match this.state.as_mut().project() {
                StateProj::Before { request, step } => (request, step),
                StateProj::Refused { refusal } => {
                    let refusal = refusal.take().map(|refusal| refused(this.call.as_ref(), refusal));
                    return refusal.map_or(Poll::Pending, |refused| Poll::Ready(Err(refused)));
                }
                StateProj::Calling { future } => {
                    let response = ready!(future.poll(cx)).map_err(Error::from_service)?;
                    if let Some(permits) = this.permits.take() {
                        permits.hear(this.call.as_ref(), &response);
                    }
                    return Poll::Ready(Ok(response));
                }
            };
            let call = this.call.as_ref();
            // Whether in place of permits that were lost.
            let granted = match step.as_mut().project() {
                StepProj::Asking => {
                    let Some(permits) = this.permits else { return Poll::Pending };
                    match permits.take_at_once() {
                        Some(outcome) => outcome.map(|()| false).map_err(|refusal| refused(call, refusal)),
                        None => {
                            step.set(Step::acquiring(permits.acquire(), false));
                            continue;
                        }
                    }
                }
                StepProj::Acquiring { acquire, waiting, renewed } => {
                    let Poll::Ready(outcome) = acquire.poll(cx) else {
                        waiting.get_or_insert_with(|| Waiting::begin(call));
                        return Poll::Pending;
                    };
                    if let Some(waiting) = waiting.take() {
                        let waited = waiting.over(call);
                        if let Some(call) = call {
                            call.add_wait(waited);
                        }
                    }
                    outcome.map(|()| *renewed).map_err(|refusal| refused(call, refusal))
                }
                StepProj::Readying { since } => {
                    let Poll::Ready(ready) = this.inner.poll_ready(cx) else {
                        since.get_or_insert_with(clock::now);
                        return Poll::Pending;
                    };
                    if let Err(error) = ready {
                        Err(Error::from_readiness(error))
                    } else {
                        // Permits that were held too long would let this request fall into another window than the
                        // one that they were counted in, or into a pause. They are lost, and new ones are waited for
                        // with the room held, for a service that is ready stays so until it is called: given up, it
                        // might be gone again when they come.
                        let held = since.map(|since| since.elapsed());
                        let stale = this.permits.as_mut().filter(|permits| permits.are_stale(held));
                        if let Some(permits) = stale {
                            step.set(Step::acquiring(permits.renew(), true));
                            continue;
                        }
                        let Some(request) = request.take() else {
                            // Polled again after it resolved: nothing is left to answer with.
                            return Poll::Pending;
                        };
                        if let Some(permits) = this.permits {
                            permits.held = Held::Sent;
                        }
                        this.state.set(State::Calling { future: this.inner.call(request) });
                        continue;
                    }
                }
            };
            match granted {
                Ok(renewed) => {
                    // In place of a permit that was lost, it is the same request's.
                    if !renewed {
                        telemetry::granted(call);
                    }
                    if let Some(permits) = this.permits {
                        permits.held = Held::Granted;
                    }
                    step.set(Step::Readying { since: None });
                }
                Err(error) => {
                    // Neither the limiter nor the inner service is asked again.
                    this.state.set(State::Refused { refusal: None });
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

/// The permits of one request, given back to the limiter's count of what is in flight when the request is over,
/// however it ends.
pub(super) struct Permits<L: Limiter> {
    limiter: L,
    ask: PermitRequest,
    /// Whether the answer comes from the server whose limit it is.
    heeded: bool,
    held: Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    Granted,
    /// The request has left, or may have.
    Sent,
}

impl<L: Limiter> Permits<L> {
    pub(super) fn new(limiter: L, ask: PermitRequest, heeded: bool) -> Self {
        Self { limiter, ask, heeded, held: Held::No }
    }

    fn take_at_once(&self) -> Option<Result<(), Refusal>> {
        self.limiter.take_at_once(&self.ask)
    }

    fn acquire(&self) -> L::Acquire {
        self.limiter.acquire(self.ask)
    }

    /// `held` is none when the inner service had room at once.
    fn are_stale(&self, held: Option<Duration>) -> bool {
        held.is_some_and(|held| self.limiter.is_stale(held))
    }

    /// Only the deadline bounds the second wait: this request was let in once.
    fn renew(&mut self) -> L::Acquire {
        self.release();
        self.limiter.acquire(PermitRequest { max_wait: None, max_queue: usize::MAX, ..self.ask })
    }

    /// Gives the permits back first: the server has counted this request in what it says is left.
    fn hear<R>(mut self, call: Option<&CallContext>, response: &Response<R>) {
        self.release();
        if !self.heeded {
            return;
        }
        if let Some(feedback) = Feedback::read(response.status(), response.headers(), clock::wall) {
            if let Some(pause) = feedback.asked_pause() {
                telemetry::paused(call, pause);
            }
            self.limiter.observe(&feedback);
        }
    }

    fn release(&mut self) {
        if std::mem::replace(&mut self.held, Held::No) != Held::No {
            self.limiter.release(self.ask.cost);
        }
    }
}

impl<L: Limiter> Drop for Permits<L> {
    fn drop(&mut self) {
        match self.held {
            Held::Sent => self.limiter.abandon(self.ask.cost),
            _ => self.release(),
        }
    }
}

impl<S: Service<Request<B>>, L: Limiter, B> fmt::Debug for ResponseFuture<S, L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Before { step: Step::Readying { .. }, .. } => "readying",
            State::Before { .. } => "acquiring",
            State::Refused { .. } => "refused",
            State::Calling { .. } => "calling",
        };
        f.debug_struct("rate_limit::ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
