use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode, request};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::{
    Outcome, PerRequest,
    layer::Policy,
    outcome,
    schedule::{Delay, Used},
};
use crate::{
    body::{Drain, Replay, ReplayBody},
    call::{self, Call, DelayReason, Ended},
    clock::{self, Instant},
    error::{BoxError, Error, Kind},
    log,
    policy::{self, Cause, Spent, Verdict, feedback},
};

/// The most that is read of a failed answer's body so that its connection can be used again: more costs more
/// than a new connection.
const DRAIN_LIMIT: u64 = 64 * 1024;
/// The longest that the rest of such a body is waited for.
const DRAIN_TIME: Duration = Duration::from_millis(100);

pin_project! {
    /// The future of [`Retry`](super::Retry): attempt, drain, sleep, and again.
    pub struct ResponseFuture<S: Service<Request<ReplayBody<B>>>, B, R> {
        #[pin]
        state: State<S::Future, R>,
        inner: S,
        policy: Arc<Policy>,
        next: Option<Request<ReplayBody<B>>>,
        kept: Kept<B>,
        call: Call,
    }

    impl<S: Service<Request<ReplayBody<B>>>, B, R> PinnedDrop for ResponseFuture<S, B, R> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            // Dropped in its back-off, a retry was not sent.
            if matches!(*this.state, State::Draining { .. } | State::Sleeping { .. }) {
                if let (Some(budget), Some(spent)) = (&this.policy.budget, this.kept.spent.take()) {
                    budget.give_back(spent);
                }
            }
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R> {
        Starting,
        Readying,
        Calling { #[pin] future: F },
        Draining { #[pin] body: Drain<R>, #[pin] timer: Sleep, until: Instant },
        Sleeping { #[pin] timer: Sleep },
    }
}

/// The request as it came, to make the next attempt of, and what the attempts so far have left.
struct Kept<B> {
    head: request::Parts,
    replay: Replay<B>,
    idempotent: bool,
    max_attempts: u32,
    attempts: u32,
    used: Used,
    /// Of the budget, by the attempt under way.
    spent: Option<Spent>,
    /// What the attempt before failed with.
    failed: Option<Error>,
}

/// Another attempt: what to send, and after how long.
struct Again<B> {
    request: Request<ReplayBody<B>>,
    delay: Duration,
    reason: DelayReason,
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body,
{
    pub(super) fn new(inner: S, policy: Arc<Policy>, mut request: Request<B>) -> Self {
        let call = Call::of(request.extensions_mut());
        let (mut head, body) = request.into_parts();
        let (body, replay) = ReplayBody::record(body, policy.replay_limit);
        let own = head.extensions.get().copied().unwrap_or(PerRequest::new());
        let keyed = policy.idempotency_key.as_ref().is_some_and(|key| key.put_on(&mut head, &policy.keys));
        let idempotent = keyed || own.idempotent || policy::is_idempotent(&head.method);
        let next = Some(Request::from_parts(head.clone(), body));
        let kept = Kept {
            head,
            replay,
            idempotent,
            max_attempts: own.max_attempts.unwrap_or(policy.max_attempts),
            attempts: 0,
            used: Used::default(),
            spent: None,
            failed: None,
        };
        Self { state: State::Starting, inner, policy, next, kept, call }
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
                StateProj::Starting => {
                    this.kept.attempts += 1;
                    this.call.start_attempt();
                    this.state.set(State::Readying);
                    continue;
                }
                StateProj::Readying => match ready!(this.inner.poll_ready(cx)) {
                    Ok(()) => {
                        let Some(request) = this.next.take() else { return Poll::Pending };
                        let future = this.inner.call(request);
                        this.state.set(State::Calling { future });
                        continue;
                    }
                    // It was not called: whatever the error says of itself, nothing was sent.
                    Err(error) => {
                        // And this instance is of no more use: the next attempt asks another.
                        let fresh = this.inner.clone();
                        *this.inner = fresh;
                        *this.next = None;
                        (false, Err(Error::from_service(error)))
                    }
                },
                StateProj::Calling { future } => {
                    let result = ready!(future.poll(cx)).map_err(Error::from_service);
                    // A limiter in between is called before the service below it is ready.
                    (!matches!(&result, Err(error) if error.kind() == Kind::NotReady), result)
                }
                StateProj::Draining { body, timer, until } => {
                    if body.poll(cx).is_pending() && timer.poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let timer = tokio::time::sleep_until(*until);
                    this.state.set(State::Sleeping { timer });
                    continue;
                }
                StateProj::Sleeping { timer } => {
                    ready!(timer.poll(cx));
                    this.state.set(State::Starting);
                    continue;
                }
            };

            // The attempt lets go of its body first, which is then free to be sent again.
            this.state.set(State::Starting);
            let Again { request, delay, reason } =
                match this.kept.judge(this.policy, this.call, called, &result) {
                    Ok(again) => again,
                    Err(ended) => {
                        let earlier = this.kept.failed.take().filter(|_| !called).map(Err);
                        return Poll::Ready(finish(this.call, ended, earlier.unwrap_or(result)));
                    }
                };
            this.call.set_delay(delay, reason);
            log::retry(&this.call.report(), delay, reason);
            *this.next = Some(request);
            let now = clock::now();
            let until = clock::after(now, delay);
            // The answer is read to its end and dropped before the sleep, or its connection is lost.
            this.state.set(match result {
                Ok(response) => {
                    this.kept.failed = None;
                    State::Draining {
                        body: Drain::new(response.into_body(), DRAIN_LIMIT),
                        timer: tokio::time::sleep_until(until.min(clock::after(now, DRAIN_TIME))),
                        until,
                    }
                }
                Err(error) => {
                    // An attempt that could not begin does not hide what the one before it met with.
                    if called || this.kept.failed.is_none() {
                        this.kept.failed = Some(error);
                    }
                    State::Sleeping { timer: tokio::time::sleep_until(until) }
                }
            });
        }
    }
}

impl<B: Body> Kept<B> {
    /// Ends the attempt in the report, and says whether there is another one.
    fn judge<R>(
        &mut self,
        policy: &Policy,
        call: &Call,
        called: bool,
        result: &Result<Response<R>, Error>,
    ) -> Result<Again<B>, Ended> {
        let (told, outcome, failed, asked) = match result {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                let asked = feedback::retry_after(headers, clock::wall).filter(|asked| !asked.is_zero());
                (call::Outcome::Answer(status), Outcome::Answer { status, headers }, None, asked)
            }
            Err(error) => {
                let (told, sent) = outcome::of_error(error, called);
                (told, Outcome::Failure { error, sent }, Some(sent), None)
            }
        };
        let headers = result.as_ref().ok().map(Response::headers);
        if let Some(attempt) = call.end_attempt(told, asked, headers) {
            log::attempt(&call.report(), &attempt);
        }
        let mut spent = self.spent.take();
        // What the limiter refused has burdened nobody.
        let refused = spent.take_if(|_| told == call::Outcome::Refused);
        if let (Some(budget), Some(spent)) = (&policy.budget, refused) {
            budget.give_back(spent);
        }
        let cause = match outcome {
            Outcome::Failure { error, .. } if error.is_deadline() => return Err(Ended::Deadline),
            _ => match self.verdict(policy, &outcome) {
                Verdict::Success => {
                    if let Some(budget) = &policy.budget {
                        budget.succeeded(spent);
                    }
                    return Err(Ended::Success);
                }
                Verdict::Retry(cause) => cause,
                Verdict::NotRetryable => return Err(Ended::NotRetryable),
            },
        };
        if !policy::may_repeat(self.idempotent, failed) {
            return Err(Ended::NotIdempotent);
        }
        if self.attempts >= self.max_attempts {
            return Err(Ended::Exhausted);
        }
        if let Some(asked) = asked.filter(|asked| *asked > policy.max_retry_after) {
            call.set_retry_after(asked);
            return Err(Ended::AskedTooLong);
        }
        let (delay, reason) = self.delay(policy, cause, asked).ok_or(Ended::Exhausted)?;
        if call.deadline().is_some_and(|deadline| clock::after(clock::now(), delay) >= deadline) {
            call.set_retry_after(delay);
            return Err(Ended::Deadline);
        }
        let body = self.replay.body().map_err(|_| Ended::NotReplayable)?;
        // Last, for what is given up here costs nothing.
        if let Some(budget) = &policy.budget {
            self.spent = Some(budget.try_spend(cause).ok_or(Ended::Budget)?);
        }
        Ok(Again { request: Request::from_parts(self.head.clone(), body), delay, reason })
    }

    fn verdict(&self, policy: &Policy, outcome: &Outcome<'_>) -> Verdict {
        match outcome {
            // The connection is the caller's from here on.
            Outcome::Answer { status: StatusCode::SWITCHING_PROTOCOLS, .. } => Verdict::Success,
            _ => policy.classify.classify(&self.head, outcome),
        }
    }

    /// Never shorter than what the server asked for: jitter is only added to that.
    fn delay(
        &mut self,
        policy: &Policy,
        cause: Cause,
        asked: Option<Duration>,
    ) -> Option<(Duration, DelayReason)> {
        let (retry, random) = (self.attempts.saturating_sub(1), policy.random.next());
        let Delay { own, spread } = policy.backoff(cause).next(&mut self.used, cause, retry, random)?;
        Some(match (asked, cause) {
            (Some(asked), _) if asked > own => (asked.saturating_add(spread), DelayReason::Asked),
            (_, Cause::Throttled) => (own, DelayReason::Throttled),
            (_, Cause::Transient) => (own, DelayReason::Transient),
        })
    }
}

fn finish<R>(call: &Call, ended: Ended, result: Result<Response<R>, Error>) -> Result<Response<R>, Error> {
    call.end(ended);
    let report = call.report();
    log::gave_up(&report, ended);
    match result {
        Ok(mut response) => {
            response.extensions_mut().insert(report);
            Ok(response)
        }
        Err(error) => Err(error.with_report(|| report)),
    }
}

impl<S: Service<Request<ReplayBody<B>>>, B, R> fmt::Debug for ResponseFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Starting => "starting",
            State::Readying => "readying",
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
