use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::{attempts::Attempts, policy::Policy};
use crate::{
    body::{Drain, ReplayBody},
    call::{CallContext, StopReason},
    clock::{self, Instant},
    error::{BoxError, Error, Scope, polled_after_completion},
    policy::retry::Stop,
    telemetry,
};

/// The longest part of a failed response's body that is drained, so that its connection can be reused. Reading more costs
/// more than a new connection.
const DRAIN_LIMIT: u64 = 64 * 1024;

pin_project! {
    /// The future of [`Retry`](super::Retry).
    pub struct ResponseFuture<S: Service<Request<ReplayBody<B>>>, B, R> {
        #[pin]
        state: State<S::Future, R, Request<ReplayBody<B>>>,
        inner: S,
        policy: Arc<Policy>,
        attempts: Attempts<B>,
        call: CallContext,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R, Q> {
        // The request cannot be sent.
        Rejected { error: Option<Error> },
        // The request stays in place until the call.
        Readying { request: Option<Q>, started: bool },
        Calling { #[pin] future: F },
        Draining { #[pin] body: Drain<R>, #[pin] timer: Sleep, until: Instant, next: Option<Q> },
        Sleeping { #[pin] timer: Sleep, next: Option<Q> },
        Over,
    }
}

impl<F, R, Q> State<F, R, Q> {
    fn ready(request: Option<Q>) -> Self {
        Self::Readying { request, started: false }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body,
{
    pub(super) fn new(inner: S, policy: Arc<Policy>, mut request: Request<B>) -> Self {
        let call = CallContext::of(request.extensions_mut());
        let (attempts, first) = Attempts::of(request, &policy);
        let state = match first {
            Ok(request) => State::ready(Some(request)),
            Err(error) => State::Rejected { error: Some(error) },
        };
        Self { state, inner, policy, attempts, call }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body,
    R: Body,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            // Whether the inner service was called, and the result.
            let (called, result) = match this.state.as_mut().project() {
                StateProj::Rejected { error } => {
                    let Some(error) = error.take() else { polled_after_completion() };
                    this.state.set(State::Over);
                    return Poll::Ready(finish(this.call, StopReason::NotRetryable, Err(error)));
                }
                StateProj::Readying { request, started } => {
                    if !*started {
                        if let Err(deadline) = this.call.start_attempt(clock::now()) {
                            this.state.set(State::Over);
                            let limit = deadline.saturating_duration_since(this.call.started());
                            let error = Error::timeout(Scope::Call, limit);
                            return Poll::Ready(finish(this.call, StopReason::Deadline, Err(error)));
                        }
                        this.attempts.start();
                        *started = true;
                    }
                    match ready!(this.inner.poll_ready(cx)) {
                        Ok(()) => {
                            let Some(request) = request.take() else { polled_after_completion() };
                            let future = this.inner.call(request);
                            this.state.set(State::Calling { future });
                            continue;
                        }
                        Err(error) => {
                            // A service that failed in `poll_ready` must not be used again.
                            let fresh = this.inner.clone();
                            *this.inner = fresh;
                            // Nothing was sent, whatever the error proves.
                            (false, Err(Error::from_service(error)))
                        }
                    }
                }
                StateProj::Calling { future } => {
                    let result = ready!(future.poll(cx)).map_err(Error::from_service);
                    // The limiter is called before the service below it, which it may then not call.
                    let called = !matches!(&result, Err(error) if error.was_not_called());
                    (called, result)
                }
                StateProj::Draining { body, timer, until, next } => {
                    if body.poll(cx).is_pending() && timer.poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let (timer, next) = (tokio::time::sleep_until(*until), next.take());
                    this.state.set(State::Sleeping { timer, next });
                    continue;
                }
                StateProj::Sleeping { timer, next } => {
                    ready!(timer.poll(cx));
                    let request = next.take();
                    this.state.set(State::ready(request));
                    continue;
                }
                StateProj::Over => polled_after_completion(),
            };

            // The attempt drops its body first, so that it can be replayed.
            this.state.set(State::Over);
            // A classifier may read the report.
            let result = result.map_err(|error| error.reported(this.call));
            let (request, retry) = match this.attempts.next(this.policy, this.call, called, &result) {
                Ok(next) => next,
                Err(stop) => {
                    return Poll::Ready(finish(this.call, stop, this.attempts.finish(called, result)));
                }
            };
            telemetry::retry(this.call, retry.delay, retry.reason);
            let (now, next) = (clock::now(), Some(request));
            let until = clock::after(now, retry.delay);
            // The body is drained and dropped before the sleep, because otherwise its connection is lost.
            this.state.set(match this.attempts.keep_error(called, result) {
                Some(response) => State::Draining {
                    body: Drain::new(response.into_body(), DRAIN_LIMIT),
                    timer: tokio::time::sleep_until(clock::after(now, retry.drain)),
                    until,
                    next,
                },
                None => State::Sleeping { timer: tokio::time::sleep_until(until), next },
            });
        }
    }
}

fn finish<R>(
    call: &CallContext,
    stop: impl Into<Stop>,
    result: Result<Response<R>, Error>,
) -> Result<Response<R>, Error> {
    let stop = stop.into();
    call.end(stop);
    telemetry::gave_up(call, stop.reason);
    let report = call.report();
    match result {
        Ok(mut response) => {
            response.extensions_mut().insert(report);
            Ok(response)
        }
        Err(error) => Err(error.with_report(report)),
    }
}

impl<S: Service<Request<ReplayBody<B>>>, B, R> fmt::Debug for ResponseFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("retry::ResponseFuture")
            .field("attempts", &self.attempts.count())
            .finish_non_exhaustive()
    }
}
