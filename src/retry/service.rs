use std::{
    fmt,
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
    RetryOverride,
    attempts::{Attempts, framing},
    policy::{AnyBackoff, Policy},
};
use crate::{
    body::{BrokenBody, BrokenResponse, Drain, ReplayBody},
    call::{CallContext, RecordedHead, StopReason, extension_beside},
    clock::{self, Instant},
    error::{BoxError, Error, polled_after_completion, take_once},
    policy::retry::is_idempotent,
    telemetry,
};

/// The service of [`RetryLayer`](super::RetryLayer).
///
/// # Errors
///
/// Returns the error of the last attempt, with the [`Report`](crate::Report) of all attempts.
///
/// # Cancellation
///
/// Dropping the call also drops the running attempt or the backoff, and nothing continues in the background. The budget
/// does not get back the cost of a retry, even if the call is dropped before the retry is sent.
#[derive(Debug, Clone)]
pub struct Retry<S> {
    pub(super) inner: S,
    pub(super) policy: Arc<Policy>,
}

impl<S> Retry<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for Retry<S>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body + 'static,
    R: Body,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S, B, R>;

    /// Always returns ready. Before each attempt, the call's future waits until the inner service is ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture::new(self.inner.clone(), Arc::clone(&self.policy), request)
    }
}

pin_project! {
    /// The future of [`Retry`].
    pub struct ResponseFuture<S: Service<Request<ReplayBody<B>>>, B, R> {
        #[pin]
        state: State<S::Future, R, ReplayBody<B>>,
        inner: S,
        attempts: Attempts<B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R, B> {
        // `error` is set if the request cannot be sent. It is `None` after the call has ended.
        Ended { error: Option<Error> },
        // The body of the response to the last attempt broke. `error` is the error of the body.
        Broken { error: Option<Error> },
        // The request is stored here until the inner service is called.
        Readying { request: Option<Request<B>>, started: bool },
        Calling { #[pin] future: F },
        // While `body` is drained, the timer limits the drain. After that it measures the delay. `next` is the body of
        // the next attempt. Its head is created after the delay.
        Waiting { #[pin] body: Option<Drain<R>>, #[pin] timer: Sleep, until: Instant, next: Option<B> },
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body + 'static,
{
    /// Records the request. The call fails if no idempotency key fits into the request's headers.
    pub(super) fn new(inner: S, policy: Arc<Policy>, mut request: Request<B>) -> Self {
        let call = CallContext::of(request.extensions_mut());
        let own =
            extension_beside(Some(&call), request.extensions()).copied().unwrap_or(RetryOverride::new());
        let declared = own.idempotent || policy.is_idempotent(&request);
        let (length, may_have_trailers) = framing(&request);
        let broken = BrokenBody::take_from(request.extensions_mut());
        let key = policy.idempotency_key.as_ref();
        let key = key.map(|key| key.put_on(&mut request, &call, broken.is_some(), &policy.keys)).transpose();
        let idempotent = declared || is_idempotent(request.method()) || matches!(key, Ok(Some(true)));
        let moves = declared || request.method().is_safe();
        call.set_body_size(request.body().size_hint().exact());
        let head = RecordedHead::of(&request);
        let shown = policy.shows_requests().then(|| Box::new(head.request(Some(&call), ())));
        let (parts, body) = request.into_parts();
        let is_within_limit = body.size_hint().lower() <= policy.replay_limit as u64;
        let (body, replay) = ReplayBody::record(body, policy.replay_limit, length, may_have_trailers, &call);
        let (broken, error) = broken.unzip();
        let count = match broken {
            Some(_) => call.attempt().saturating_sub(call.is_key_replaced().into()),
            None => 0,
        };
        let retries = count.saturating_sub(1);
        let delays = |backoff: &AnyBackoff| if retries > 0 { backoff.remaining(retries) } else { None };
        Self {
            // The first attempt uses the original head, whose header map has room for the fields that inner layers add.
            state: match (key, error) {
                (Err(error), _) => State::Ended { error: Some(error) },
                (Ok(_), Some(error)) => State::Broken { error: Some(error) },
                (Ok(_), None) => {
                    State::Readying { request: Some(Request::from_parts(parts, body)), started: false }
                }
            },
            inner,
            attempts: Attempts {
                call,
                head,
                shown,
                replay,
                count,
                max_attempts: own.max_attempts.unwrap_or(policy.max_attempts),
                idempotent,
                moves,
                resends: !own.never,
                transient_delays: delays(&policy.transient),
                throttled_delays: delays(&policy.throttled),
                policy,
                resent: false,
                cost: None,
                failed: None,
                maybe_processed: false,
                broken: broken.map(|response| {
                    let is_replayable = response.is_replayable && is_within_limit;
                    Box::new(BrokenResponse { is_replayable, ..response })
                }),
            },
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    B: Body + 'static,
    R: Body,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            // The result of the attempt, and whether the inner service was called.
            let (called, mut result) = match this.state.as_mut().project() {
                StateProj::Ended { error } => {
                    let Some(error) = error.take() else { polled_after_completion() };
                    return Poll::Ready(this.attempts.end(StopReason::NotRetryable, true, Err(error)));
                }
                StateProj::Broken { error } => (true, Err(take_once(error))),
                StateProj::Readying { request, started } => {
                    if !*started {
                        if let Err(error) = this.attempts.start() {
                            this.state.set(State::Ended { error: None });
                            return Poll::Ready(this.attempts.end(StopReason::Deadline, true, Err(error)));
                        }
                        *started = true;
                    }
                    match ready!(this.inner.poll_ready(cx)) {
                        Ok(()) => {
                            let future = this.inner.call(take_once(request));
                            this.state.set(State::Calling { future });
                            continue;
                        }
                        Err(error) => {
                            // Continues with a clone, because a service whose `poll_ready` failed must not be used
                            // again.
                            let fresh = this.inner.clone();
                            *this.inner = fresh;
                            (false, Err(Error::from_readiness(error)))
                        }
                    }
                }
                StateProj::Calling { future } => {
                    let result = ready!(future.poll(cx)).map_err(Error::from_service);
                    // An inner limiter may have refused the attempt, or its own inner service may not have become
                    // ready.
                    let called = !matches!(&result, Err(error) if error.was_not_called());
                    (called, result)
                }
                StateProj::Waiting { mut body, mut timer, until, next } => {
                    if let Some(drain) = body.as_mut().as_pin_mut() {
                        if drain.poll(cx).is_pending() && timer.as_mut().poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                        // Drops the body before the delay, so that it does not occupy its connection during the delay.
                        body.set(None);
                        timer.as_mut().reset(*until);
                    }
                    ready!(timer.poll(cx));
                    let Attempts { head, call, policy, .. } = this.attempts;
                    let request = head.request(Some(call), take_once(next));
                    if call.has_expiring_key(request.headers()) {
                        telemetry::retry_inside_auth(call, &policy.order_warning);
                    }
                    this.state.set(State::Readying { request: Some(request), started: false });
                    continue;
                }
            };

            // Drops the future of the attempt. This releases the request's body, so that it can be replayed.
            this.state.set(State::Ended { error: None });
            // Sets the report, because a classifier may read it from the error.
            if let Err(error) = &mut result {
                error.add_report(&this.attempts.call);
            }
            let (next, retry) = match this.attempts.next(called, &result) {
                Ok(next) => next,
                Err(stop) => return Poll::Ready(this.attempts.end(stop, called, result)),
            };
            let response = this.attempts.keep_error(called, result);
            let now = clock::now();
            let until = clock::after(now, retry.delay);
            let ends = if response.is_some() { clock::after(now, retry.drain) } else { until };
            this.state.set(State::Waiting {
                body: response.map(|response| Drain::new(response.into_body())),
                timer: tokio::time::sleep_until(ends),
                until,
                next: Some(next),
            });
        }
    }
}

impl<S: Service<Request<ReplayBody<B>>>, B, R> fmt::Debug for ResponseFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("retry::ResponseFuture")
            .field("attempts", &self.attempts.count)
            .finish_non_exhaustive()
    }
}
