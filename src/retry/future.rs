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

use super::{
    judge::{Again, Kept},
    layer::Policy,
};
use crate::{
    body::{Drain, ReplayBody},
    call::{CallContext, StopReason},
    clock::{self, Instant},
    error::{BoxError, Error, Scope},
    telemetry,
};

/// The most that is read of a failed answer's body so that its connection can be used again: more costs more
/// than a new connection.
const DRAIN_LIMIT: u64 = 64 * 1024;

pin_project! {
    /// The future of [`Retry`](super::Retry): attempt, drain, sleep, and again.
    pub struct ResponseFuture<S: Service<Request<ReplayBody<B>>>, B, R> {
        #[pin]
        state: State<S::Future, R, Request<ReplayBody<B>>>,
        inner: S,
        policy: Arc<Policy>,
        kept: Kept<B>,
        call: CallContext,
    }

    impl<S: Service<Request<ReplayBody<B>>>, B, R> PinnedDrop for ResponseFuture<S, B, R> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            // Dropped before it is called, or while a limiter holds it, a retry was not sent.
            let called = matches!(*this.state, State::Calling { .. });
            if !called || this.call.is_held(this.kept.number) {
                this.kept.refund(this.policy);
            }
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R, Q> {
        // The request of the next attempt is where the attempt will be: it is none once it was given away.
        Before { next: Option<Q>, begun: bool },
        Calling { #[pin] future: F },
        Over,
        Draining { #[pin] body: Drain<R>, #[pin] timer: Sleep, until: Instant, next: Option<Q> },
        Sleeping { #[pin] timer: Sleep, next: Option<Q> },
    }
}

impl<F, R, Q> State<F, R, Q> {
    fn before(next: Option<Q>) -> Self {
        Self::Before { next, begun: false }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body,
{
    pub(super) fn new(inner: S, policy: Arc<Policy>, mut request: Request<B>) -> Self {
        let call = CallContext::of(request.extensions_mut());
        let (kept, first) = Kept::of(request, &policy);
        Self { state: State::before(Some(first)), inner, policy, kept, call }
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
            // Whether the inner service was called, and what came of it.
            let (called, result) = match this.state.as_mut().project() {
                StateProj::Before { next, begun } => {
                    if !*begun {
                        if let Some(rejected) = this.kept.rejected.take() {
                            this.state.set(State::Over);
                            return Poll::Ready(finish(this.call, StopReason::NotRetryable, Err(rejected)));
                        }
                        let now = clock::now();
                        if let Some(late) = overdue(this.call, now) {
                            this.state.set(State::Over);
                            return Poll::Ready(finish(this.call, StopReason::Deadline, Err(late)));
                        }
                        this.kept.attempts += 1;
                        this.kept.number = this.call.start_attempt(now, this.kept.refundable);
                        *begun = true;
                    }
                    match ready!(this.inner.poll_ready(cx)) {
                        Ok(()) => {
                            let Some(request) = next.take() else { return Poll::Pending };
                            let future = this.inner.call(request);
                            this.state.set(State::Calling { future });
                            continue;
                        }
                        // It was not called: whatever the error says of itself, nothing was sent.
                        Err(error) => {
                            // And this instance is of no more use: the next attempt asks another.
                            let fresh = this.inner.clone();
                            *this.inner = fresh;
                            (false, Err(Error::from_service(error)))
                        }
                    }
                }
                StateProj::Calling { future } => {
                    let result = ready!(future.poll(cx)).map_err(Error::from_service);
                    // A limiter in between is called before the service below it, which it may then not call.
                    let called = !matches!(&result, Err(error) if error.was_not_called());
                    (called, result)
                }
                // Polled again after it resolved.
                StateProj::Over => return Poll::Pending,
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
                    let next = next.take();
                    this.state.set(State::before(next));
                    continue;
                }
            };

            // The attempt lets go of its body first, which is then free to be sent again.
            this.state.set(State::Over);
            // The rules that judge it may look at the report.
            let result = result.map_err(|error| error.reported(this.call));
            let Again { request, delay, drain, reason } =
                match this.kept.judge(this.policy, this.call, called, &result) {
                    Ok(again) => again,
                    Err(ended) => {
                        let outcome = this.kept.failed.take().filter(|_| !called).map_or(result, Err);
                        let processed = this.kept.maybe_processed;
                        let outcome =
                            outcome.map_err(|error| if processed { error.after_processing() } else { error });
                        return Poll::Ready(finish(this.call, ended, outcome));
                    }
                };
            this.call.set_delay(delay, reason);
            telemetry::retry(this.call, delay, reason);
            let next = Some(request);
            let now = clock::now();
            let until = clock::after(now, delay);
            // The answer is read to its end and dropped before the sleep, or its connection is lost.
            this.state.set(match result {
                Ok(response) => {
                    this.kept.failed = None;
                    State::Draining {
                        body: Drain::new(response.into_body(), DRAIN_LIMIT),
                        timer: tokio::time::sleep_until(clock::after(now, drain)),
                        until,
                        next,
                    }
                }
                Err(error) => {
                    // An attempt that could not begin does not hide what the one before it met with.
                    if called || this.kept.failed.is_none() {
                        this.kept.failed = Some(error);
                    }
                    State::Sleeping { timer: tokio::time::sleep_until(until), next }
                }
            });
        }
    }
}

/// What is said in place of an attempt that would begin after the deadline.
fn overdue(call: &CallContext, now: Instant) -> Option<Error> {
    let deadline = call.deadline().filter(|deadline| *deadline < now)?;
    Some(Error::timeout(Scope::Call, deadline.saturating_duration_since(call.started())))
}

fn finish<R>(
    call: &CallContext,
    ended: StopReason,
    result: Result<Response<R>, Error>,
) -> Result<Response<R>, Error> {
    call.end(ended);
    telemetry::gave_up(call, ended);
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
        let state = match self.state {
            State::Before { begun: false, .. } => "starting",
            State::Before { begun: true, .. } => "readying",
            State::Over => "over",
            State::Calling { .. } => "calling",
            State::Draining { .. } => "draining",
            State::Sleeping { .. } => "sleeping",
        };
        f.debug_struct("retry::ResponseFuture")
            .field("state", &state)
            .field("attempts", &self.kept.attempts)
            .finish_non_exhaustive()
    }
}
