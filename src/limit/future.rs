use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    limiter::{Limiter, PermitRequest},
    permit::{Permit, ResponseInfo},
};
use crate::{
    call::CallContext,
    clock,
    error::{BoxError, Error, Refusal, polled_after_completion},
    telemetry::{self, Waiting},
};

pin_project! {
    /// The future of [`RateLimit`](super::RateLimit): waits for the permit and the inner service, then calls it.
    pub struct ResponseFuture<S: Service<Request<B>>, L: Limiter, B> {
        #[pin]
        state: State<L, Request<B>, L::Acquire, S::Future>,
        inner: S,
        // Whether the response comes from the server that the limiter belongs to.
        trusted: bool,
        call: Option<CallContext>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<L, Q, A, F> {
        // The request stays in place until the inner service is called.
        Before { limiter: L, bounds: PermitRequest, request: Option<Q>, #[pin] step: Step<A> },
        Refused { refusal: Option<Refusal> },
        Calling { #[pin] future: F, permit: Option<Permit<'static>> },
    }
}

pin_project! {
    #[project = StepProj]
    enum Step<A> {
        // Not polled yet. Most requests get their permit at the first poll and need no future for a wait.
        New,
        // The clock is read only for a request that has to wait.
        Acquiring { #[pin] acquire: A, waiting: Option<Waiting>, renewed: bool },
        Readying { permit: Option<Permit<'static>>, waited: bool },
    }
}

impl<A> Step<A> {
    fn acquiring(acquire: A, renewed: bool) -> Self {
        Self::Acquiring { acquire, waiting: None, renewed }
    }
}

impl<S: Service<Request<B>>, L: Limiter, B> ResponseFuture<S, L, B> {
    pub(super) fn new(
        inner: S,
        limiter: Result<L, Refusal>,
        bounds: PermitRequest,
        trusted: bool,
        request: Request<B>,
        call: Option<CallContext>,
    ) -> Self {
        let state = match limiter {
            Ok(limiter) => State::Before { limiter, bounds, request: Some(request), step: Step::New },
            Err(refusal) => State::Refused { refusal: Some(refusal) },
        };
        Self { state, inner, trusted, call }
    }
}

impl<S, L, B, R> Future for ResponseFuture<S, L, B>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    L: Limiter,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call.as_ref();
        loop {
            let (limiter, bounds, request, mut step) = match this.state.as_mut().project() {
                StateProj::Before { limiter, bounds, request, step } => (limiter, bounds, request, step),
                StateProj::Refused { refusal } => {
                    let Some(refusal) = refusal.take() else { polled_after_completion() };
                    telemetry::refused(call, &refusal);
                    return Poll::Ready(Err(Error::refused(refusal)));
                }
                StateProj::Calling { future, permit } => {
                    let outcome = ready!(future.poll(cx));
                    // Without a response the permit is dropped as unconfirmed.
                    let permit = permit.take();
                    let response = outcome.map_err(Error::from_service)?;
                    if let Some(permit) = permit {
                        complete(permit, *this.trusted, call, &response);
                    }
                    return Poll::Ready(Ok(response));
                }
            };
            let (outcome, renewed) = match step.as_mut().project() {
                StepProj::New => match limiter.try_acquire_with(bounds) {
                    Some(outcome) => (outcome, false),
                    None => {
                        step.set(Step::acquiring(limiter.acquire_with(bounds), false));
                        continue;
                    }
                },
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
                    (outcome, *renewed)
                }
                StepProj::Readying { permit, waited } => {
                    let Poll::Ready(ready) = this.inner.poll_ready(cx) else {
                        *waited = true;
                        return Poll::Pending;
                    };
                    if let Err(error) = ready {
                        this.state.set(State::Refused { refusal: None });
                        return Poll::Ready(Err(Error::from_readiness(error)));
                    }
                    if *waited && permit.as_ref().is_some_and(Permit::is_expired) {
                        // Wasted. The wait for another one keeps the inner service ready, because a service that is
                        // given up may not be ready again when the permit arrives.
                        *permit = None;
                        step.set(Step::acquiring(limiter.acquire_with(&bounds.admitted()), true));
                        continue;
                    }
                    let Some(request) = request.take() else { polled_after_completion() };
                    let mut permit = permit.take();
                    if let Some(permit) = &mut permit {
                        // Without a wait it is sent at its grant, which saves a reading of the clock.
                        permit.mark_sent(if *waited { clock::now() } else { permit.granted_at() });
                    }
                    let future = this.inner.call(request);
                    this.state.set(State::Calling { future, permit });
                    continue;
                }
            };
            match outcome {
                Ok(permit) => {
                    // A renewed permit belongs to a request that is counted already.
                    if !renewed {
                        telemetry::granted(call);
                    }
                    step.set(Step::Readying { permit: Some(permit), waited: false });
                }
                Err(refusal) => this.state.set(State::Refused { refusal: Some(refusal) }),
            }
        }
    }
}

/// Reports the response to the limiter.
fn complete<R>(permit: Permit<'_>, trusted: bool, call: Option<&CallContext>, response: &Response<R>) {
    if !trusted {
        return permit.release();
    }
    let info = ResponseInfo::new(response.status(), response.headers());
    if let Some(pause) = info.requested_pause() {
        telemetry::paused(call, pause);
    }
    permit.complete(&info);
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
