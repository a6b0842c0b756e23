//! What the attempts of a call share, and the decision after each.

use std::error::Error as _;

use http::{
    Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TRAILER},
    request,
};
use http_body::Body;

use super::{AttemptResult, RetryOverride, backoff::Delays, head::Head, outcome, policy::Policy};
use crate::{
    body::{Replay, ReplayBody},
    call::{CallContext, Delivery, KeyReplaced, Outcome, StopReason},
    clock,
    error::{Error, Reason, Refusal},
    policy::{
        self, RetryDecision, feedback,
        grpc::{self, Code, Pushback},
        retry::{Delay, Inputs, Retry, RetryState, Stop, Verdict},
    },
    telemetry::{self, Answered},
};

/// The recorded request, and the state of its attempts.
pub(super) struct Attempts<B> {
    head: Head,
    replay: Replay<B>,
    state: RetryState,
    /// Whether the request may be resent with another key.
    resends: bool,
    transient_delays: Delays,
    throttled_delays: Delays,
    /// The cost of the last retry.
    cost: Option<u32>,
    /// The error of the last attempt that called the service, if it was not a response.
    failed: Option<Error>,
    /// Whether the server may have processed any attempt.
    maybe_processed: bool,
}

impl<B> Attempts<B> {
    /// Returns the number of attempts that count.
    pub(super) fn count(&self) -> u32 {
        self.state.attempts
    }
}

impl<B: Body> Attempts<B> {
    /// Records the request. Returns the first attempt, or an error if the request has no room for an idempotency key.
    pub(super) fn of(request: Request<B>, policy: &Policy) -> (Self, Result<Request<ReplayBody<B>>, Error>) {
        let (mut head, body) = request.into_parts();
        let announced = announced(&head, &body);
        let (body, replay) = ReplayBody::record(body, policy.replay_limit, announced);
        let own = head.extensions.get().copied().unwrap_or(RetryOverride::new());
        let key = policy.idempotency_key.as_ref().map(|key| key.put_on(&mut head, &policy.keys)).transpose();
        let idempotent = own.idempotent
            || policy.is_idempotent(&head)
            || policy::outcome::is_idempotent(&head.method)
            || matches!(key, Ok(Some(true)));
        let attempts = Self {
            head: Head::of(&head, policy.shows_requests()),
            replay,
            state: RetryState {
                attempts: 0,
                max_attempts: own.max_attempts.unwrap_or(policy.max_attempts),
                idempotent,
                max_retry_after: policy.max_retry_after,
            },
            resends: !own.never,
            transient_delays: None,
            throttled_delays: None,
            cost: None,
            failed: None,
            maybe_processed: false,
        };
        // The first attempt gets the original, whose map has room for the fields of the layers below.
        (attempts, key.map(|_| Request::from_parts(head, body)))
    }

    /// Counts an attempt that starts.
    pub(super) fn start(&mut self) {
        self.state.attempts += 1;
    }

    /// Ends the attempt in the report. Returns the next attempt, or why there is none.
    ///
    /// `called` is `false` if the service below was not called.
    pub(super) fn next<R: Body>(
        &mut self,
        policy: &Policy,
        call: &CallContext,
        called: bool,
        result: &Result<Response<R>, Error>,
    ) -> Result<(Request<ReplayBody<B>>, Retry), Stop> {
        let response = result.as_ref().ok();
        let (headers, error) = (response.map(Response::headers), result.as_ref().err());
        let outcome = match result {
            Ok(response) => Outcome::Response(response.status()),
            Err(error) => outcome::of_error(error, called, self.replay.has_failed()),
        };
        self.maybe_processed |= outcome.delivery() != Delivery::NotSent;
        let requested = response.and_then(|response| {
            feedback::requested_delay(response.status(), response.headers(), clock::wall)
        });
        call.end_attempt(outcome, requested, headers);
        telemetry::attempt(call, result.as_ref().map(Answered::of));

        let verdict = self.verdict(policy, call, &AttemptResult { outcome, headers, error }, response);
        let (mut inputs, mut body) = (Inputs::default(), None);
        if verdict.may_retry() {
            body = self.replay.body();
            inputs = Inputs {
                requested,
                backoff: self.backoff(policy, verdict),
                time_left: call.deadline().map(|deadline| deadline.saturating_duration_since(clock::now())),
                replayable: body.is_some(),
                has_body: response.is_some_and(|response| !response.body().is_end_stream()),
            };
        }
        let retry = policy::retry::decide(&self.state, outcome, verdict, &inputs);
        let retry = retry.map_err(|stop| Stop {
            retry_after: stop
                .retry_after
                .or(error.filter(|error| error.is_refusal()).and_then(Error::retry_after)),
            ..stop
        });
        let cost = self.cost.take();
        // A retry that was not sent costs nothing, unless the server received it before with another key.
        let unsent = !called && cost.is_some() && !call.is_key_replaced();
        let succeeded = matches!(retry, Err(Stop { reason: StopReason::Success, .. }));
        if let Some(budget) = policy.budget.as_ref().filter(|_| unsent || succeeded) {
            budget.succeeded(cost);
        }
        let retry = retry?;
        let body = body.ok_or(StopReason::NotReplayable)?;
        match (verdict, &policy.budget) {
            (Verdict::Classified(decision), Some(budget)) => {
                self.cost = Some(budget.try_spend(decision).ok_or(StopReason::Budget)?);
            }
            (Verdict::KeyReplaced, _) => {
                // The same attempt with another key, which neither counts nor costs.
                self.cost = cost;
                self.state.attempts = self.state.attempts.saturating_sub(1);
            }
            _ => {}
        }
        call.retry(&retry, verdict == Verdict::KeyReplaced);
        Ok((Request::from_parts(self.head.again(call), body), retry))
    }

    /// Returns what follows from the result by itself.
    fn verdict<R>(
        &self,
        policy: &Policy,
        call: &CallContext,
        attempt: &AttemptResult<'_>,
        response: Option<&Response<R>>,
    ) -> Verdict {
        // No rule and no server knows that there is another key. A 401 was not applied, whatever its method
        // (RFC 9110 §15.5.2).
        let replaced = |response| is_key_replaced(response, self.state.idempotent);
        if self.resends && response.is_some_and(replaced) && !call.is_key_replaced() {
            return Verdict::KeyReplaced;
        }
        if attempt.error.is_some_and(Error::is_deadline) {
            return Verdict::Deadline;
        }
        // The connection of a 101 belongs to the caller.
        if attempt.outcome == Outcome::Response(StatusCode::SWITCHING_PROTOCOLS) {
            return Verdict::Classified(RetryDecision::Success);
        }
        match policy.classify(self.head.shown(), attempt) {
            RetryDecision::NotRetryable if attempt.error.is_some_and(is_refused_by_deadline) => {
                Verdict::Deadline
            }
            decision => Verdict::Classified(decision),
        }
    }

    fn backoff(&mut self, policy: &Policy, verdict: Verdict) -> Option<Delay> {
        let Verdict::Classified(decision) = verdict else { return None };
        let (retry, random) = (self.state.attempts.saturating_sub(1), policy.random.next());
        let (backoff, delays) = match decision {
            RetryDecision::Throttled => (&policy.throttled, &mut self.throttled_delays),
            _ => (&policy.transient, &mut self.transient_delays),
        };
        backoff.next(delays, retry, random)
    }

    /// Keeps the error of an attempt that is retried, or returns its response.
    pub(super) fn keep_error<R>(&mut self, called: bool, result: Result<R, Error>) -> Option<R> {
        match result {
            Ok(response) => {
                self.failed = None;
                Some(response)
            }
            Err(error) => {
                // An attempt that could not start does not replace the error of an earlier one.
                if called || self.failed.is_none() {
                    self.failed = Some(error);
                }
                None
            }
        }
    }

    /// Returns the result of the call after its last attempt.
    pub(super) fn finish<R>(&mut self, called: bool, result: Result<R, Error>) -> Result<R, Error> {
        let result = self.failed.take().filter(|_| !called).map_or(result, Err);
        result.map_err(|error| if self.maybe_processed { error.after_processing() } else { error })
    }
}

/// Returns whether the server rejected a key that is being replaced, of a request that may be resent.
fn is_key_replaced<R>(response: &Response<R>, idempotent: bool) -> bool {
    let headers = response.headers();
    let grpc = || idempotent && Code::in_head(headers) == Some(Code::UNAUTHENTICATED);
    response.extensions().get::<KeyReplaced>().is_some()
        && (response.status() == StatusCode::UNAUTHORIZED
            || grpc() && grpc::pushback(headers) != Some(Pushback::Never))
}

/// Returns the length that is sent before the body, if nothing follows the body.
fn announced<B: Body>(head: &request::Parts, body: &B) -> Option<u64> {
    // Most requests have no body, and need no look at the headers.
    if body.is_end_stream() || head.headers.contains_key(TRAILER) {
        return None;
    }
    let written = || head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    written().or(body.size_hint().exact())
}

/// Returns whether the limiter refused the request because the wait would have ended after the deadline.
fn is_refused_by_deadline(error: &Error) -> bool {
    let refusal = error.source().and_then(|source| source.downcast_ref::<Refusal>());
    refusal.is_some_and(|refusal| refusal.reason() == Reason::Deadline)
}
