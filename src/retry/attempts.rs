//! The state that the attempts of a call share, and the decision after each attempt.

use std::sync::Arc;

use http::{
    Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TRAILER},
};
use http_body::Body;

use super::{AttemptResult, backoff::RemainingDelays, policy::Policy};
use crate::{
    body::{BrokenResponse, Replay, ReplayBody},
    call::{CallContext, KeyReplaced, Outcome, RecordedHead, RequestHead, StopReason},
    clock,
    error::{Error, ErrorKind, Failed, Reason, Refusal},
    policy::{
        self, RetryDecision,
        feedback::Reading,
        grpc::{self, Code, Pushback},
        retry::{Delay, DelayReason, Inputs, LastAttempt, Retry, RetryState, Stop},
    },
    telemetry::{self, ResponseSummary},
};

/// Marks a response that ended a call of several attempts, of which the server may have processed one. An outer retry
/// layer then does not take the response as a statement that the request was not processed.
#[derive(Clone)]
struct AfterProcessing;

/// The recorded request and the state of its attempts.
pub(super) struct Attempts<B> {
    pub(super) policy: Arc<Policy>,
    pub(super) call: CallContext,
    pub(super) head: RecordedHead,
    pub(super) replay: Replay<B>,
    /// The number of attempts so far. A resend with another key is not counted.
    pub(super) count: u32,
    pub(super) max_attempts: u32,
    /// Whether a retry is safe even if the server processed the request.
    pub(super) idempotent: bool,
    /// Whether a retry is safe at another member of a pool even if one processed the request.
    pub(super) moves: bool,
    /// Whether the request may be resent with another key.
    pub(super) resends: bool,
    pub(super) transient_delays: RemainingDelays,
    pub(super) throttled_delays: RemainingDelays,
    /// The credit that the last retry spent from the budget.
    pub(super) cost: Option<u32>,
    /// The error of the last attempt that called the inner service. `None` if that attempt ended in a response.
    pub(super) failed: Option<Error>,
    /// Whether the server may have processed at least one attempt.
    pub(super) maybe_processed: bool,
    /// The response whose body broke, before the decision about a retry. Boxed, because few calls have one.
    pub(super) broken: Option<Box<BrokenResponse>>,
}

impl<B: Body + 'static> Attempts<B> {
    fn state(&self) -> RetryState {
        RetryState {
            attempts: self.count,
            max_attempts: self.max_attempts,
            idempotent: self.idempotent,
            retry_rejected: self.policy.retry_rejected,
            max_retry_after: self.policy.max_retry_after,
        }
    }

    /// Counts an attempt that is about to start. Returns an error if the deadline has passed.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        let passed = |limit| Error::new(ErrorKind::Deadline, Some(limit), None).not_sent();
        self.call.start_attempt(clock::now()).map_err(passed)?;
        self.count += 1;
        Ok(())
    }

    /// Records the end of an attempt. Returns the body of the next attempt, or the reason to stop.
    ///
    /// `called` is `false` if the inner service was not called.
    pub(super) fn next<R: Body>(
        &mut self,
        called: bool,
        result: &Result<Response<R>, Error>,
    ) -> Result<(ReplayBody<B>, Retry), Stop> {
        let (response, error, broken) = (result.as_ref().ok(), result.as_ref().err(), self.broken.take());
        let broken_head = broken.as_deref().map(|BrokenResponse { head, .. }| head);
        let headers = response.map(Response::headers).or(broken_head.map(|head| &head.headers));
        let extensions = response.map(Response::extensions).or(broken_head.map(|head| &head.extensions));
        let dialect = self.policy.dialect.clone();
        let mark = extensions.and_then(|extensions| extensions.get().copied());
        let head = response.map(Response::status).or(broken_head.map(|head| head.status)).zip(headers);
        let reading =
            head.map(|(status, headers)| Reading::new(&dialect, status, headers, mark, clock::wall));
        let outcome = match (result, &reading) {
            (Ok(response), Some(reading)) if !is_after_processing(response) => Outcome::of_response(reading),
            (Ok(response), _) => Outcome::Response(response.status()),
            (Err(error), _) => outcome_of(error, called, self.replay.has_failed()),
        };
        if let Some(budget) = self.policy.budget.as_ref().filter(|_| broken.is_some() && self.count > 1) {
            budget.take_back();
        }
        self.maybe_processed |= outcome.delivery().may_be_processed();
        let requested = reading.as_ref().and_then(Reading::requested_delay);
        let failure = error.map(|error| match error.kind() {
            ErrorKind::AttemptTimeout => "timeout",
            kind => kind.as_str(),
        });
        let code = headers.and_then(Code::in_head).filter(|code| *code != Code::OK);
        let failure = failure.or(code.map(Code::name));
        let number = self.call.end_attempt(outcome, failure, requested, headers);

        let verdict = self.verdict(
            &AttemptResult { outcome, headers, extensions, error, reading: reading.as_ref() },
            response,
        );
        let (mut inputs, mut body) = (Inputs { requested, ..Inputs::default() }, None);
        let alternative =
            self.release_member(outcome, verdict).filter(|wait| *wait <= self.policy.max_retry_after);
        let sooner = requested.filter(|requested| alternative.is_some_and(|wait| wait < *requested));
        if sooner.is_some() {
            inputs.requested = None;
        }
        if let Ok(reason) = policy::retry::backoff_reason(&self.state(), outcome, verdict, inputs.requested) {
            body = self.replay.body().filter(|_| broken.as_ref().is_none_or(|broken| broken.is_replayable));
            inputs = Inputs {
                requested: inputs.requested,
                backoff: reason.and_then(|reason| self.backoff(reason)),
                time_left: self.call.deadline().map(|ends| ends.saturating_duration_since(clock::now())),
                replayable: body.is_some(),
                has_body: response.is_some_and(|response| !response.body().is_end_stream()),
            };
        }
        if let Some(wait) = alternative {
            self.delay_member(wait, sooner, verdict, &mut inputs);
        }
        let retry = policy::retry::decide(&self.state(), outcome, verdict, &inputs);
        let retry = retry.map_err(|stop| Stop {
            retry_after: stop
                .retry_after
                .or(error.filter(|error| error.is_refusal()).and_then(Error::retry_after)),
            ..stop
        });
        let is_only = retry.is_err() && broken.is_none() && number == 1;
        telemetry::attempt(&self.call, result.as_ref().map(ResponseSummary::of), is_only);
        let cost = self.cost.take();
        // If a retry was not sent, its cost is returned to the budget. A resend with another key is an exception,
        // because it repeats a retry that the server has already received.
        let unsent = !called && cost.is_some() && !self.call.is_key_replaced();
        let succeeded = matches!(retry, Err(Stop { reason: StopReason::Success, .. }));
        if let Some(budget) = self.policy.budget.as_ref().filter(|_| unsent || succeeded) {
            budget.succeeded(cost);
        }
        let retry = retry?;
        let body = body.ok_or(StopReason::NotReplayable)?;
        match (verdict, &self.policy.budget) {
            (LastAttempt::Classified(decision), Some(budget)) => {
                self.cost = Some(budget.try_spend(decision).ok_or(StopReason::Budget)?);
            }
            (LastAttempt::KeyReplaced, _) => {
                // The resend repeats the same attempt with another key, so it is not counted as an attempt and costs
                // nothing.
                self.cost = cost;
                self.count = self.count.saturating_sub(1);
            }
            _ => {}
        }
        self.call.retry(&retry, verdict == LastAttempt::KeyReplaced);
        telemetry::retry(&self.call, retry.delay, retry.reason);
        Ok((body, retry))
    }

    /// Returns the part of the retry decision that depends only on the result of this attempt.
    fn verdict<R>(&self, attempt: &AttemptResult<'_>, response: Option<&Response<R>>) -> LastAttempt {
        // Checks for a replaced key first, because the rules and `x-should-retry` do not know that another key is
        // available. A request that received a 401 was not applied, whatever its method (RFC 9110 §15.5.2).
        let replaced = |response| is_key_replaced(response, self.idempotent);
        if self.resends && response.is_some_and(replaced) && !self.call.is_key_replaced() {
            return LastAttempt::KeyReplaced;
        }
        if attempt.error.is_some_and(Error::is_deadline) {
            return LastAttempt::Deadline;
        }
        // After a 101, the caller owns the connection.
        if attempt.outcome == Outcome::Response(StatusCode::SWITCHING_PROTOCOLS) {
            return LastAttempt::Classified(RetryDecision::Success);
        }
        let head = self.policy.shows_requests().then(|| self.head.request(Some(&self.call), ()));
        match self.policy.classify(head.as_ref().map(RequestHead::of), attempt) {
            RetryDecision::NotRetryable if attempt.error.is_some_and(is_refused_by_deadline) => {
                LastAttempt::Deadline
            }
            decision => LastAttempt::Classified(decision),
        }
    }

    /// Draws the next delay from the exponential or the custom backoff. All calls share the random source.
    fn backoff(&mut self, reason: DelayReason) -> Option<Delay> {
        let (retry, random) = (self.count.saturating_sub(1), self.policy.random.next());
        let (backoff, delays) = match reason {
            DelayReason::Throttled => (&self.policy.throttled, &mut self.throttled_delays),
            _ => (&self.policy.transient, &mut self.transient_delays),
        };
        backoff.next(delays, retry, random)
    }

    /// Stores the error of an attempt that will be retried, or returns its response.
    pub(super) fn keep_error<R>(&mut self, called: bool, result: Result<R, Error>) -> Option<R> {
        let (response, error) = match result {
            Ok(response) => (Some(response), None),
            Err(error) => (None, Some(error)),
        };
        // If this attempt did not call the inner service, keeps the error of an earlier attempt, which is more
        // informative.
        if called || self.failed.is_none() {
            self.failed = error;
        }
        response
    }

    /// Ends the call after the last attempt and returns its result.
    pub(super) fn end<R>(
        &mut self,
        stop: impl Into<Stop>,
        called: bool,
        mut result: Result<Response<R>, Error>,
    ) -> Result<Response<R>, Error> {
        let stop = stop.into();
        self.call.end(stop);
        telemetry::gave_up(&self.call, stop.reason);
        let report = self.call.report();
        if let Some(earlier) = self.failed.take().filter(|_| !called) {
            result = Err(earlier);
        }
        match &mut result {
            Ok(response) => {
                response.extensions_mut().insert(report);
                if self.maybe_processed && self.count > 1 {
                    response.extensions_mut().insert(AfterProcessing);
                }
            }
            Err(error) => {
                if self.maybe_processed {
                    error.set_after_processing();
                }
                error.set_report(report);
            }
        }
        result
    }
}

/// Returns whether the request may be resent because the server rejected a key that is being replaced.
fn is_key_replaced<R>(response: &Response<R>, idempotent: bool) -> bool {
    let headers = response.headers();
    let grpc = || idempotent && Code::in_head(headers) == Some(Code::UNAUTHENTICATED);
    response.extensions().get::<KeyReplaced>().is_some()
        && (response.status() == StatusCode::UNAUTHORIZED
            || grpc() && grpc::pushback(headers) != Some(Pushback::Never))
}

/// Returns the length of the body that is sent to the server, unless trailers may follow the body.
pub(super) fn announced<B: Body>(request: &Request<B>) -> Option<u64> {
    let (headers, body) = (request.headers(), request.body());
    // Most requests have no body. For them, the lookup in the headers is skipped.
    if body.is_end_stream() || headers.contains_key(TRAILER) {
        return None;
    }
    let written = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    written().or(body.size_hint().exact())
}

/// Returns whether the limiter refused the request because the wait would have ended after the deadline.
fn is_refused_by_deadline(error: &Error) -> bool {
    error.shown_cause::<Refusal>().is_some_and(|refusal| refusal.reason() == Reason::Deadline)
}

/// Returns whether an inner retry layer has marked the response as [`AfterProcessing`].
fn is_after_processing<R>(response: &Response<R>) -> bool {
    response.extensions().get::<AfterProcessing>().is_some()
}

/// Returns the outcome of an attempt without a response.
///
/// `called` is `false` if the inner service did not become ready. `body_failed` is `true` if the request's body failed.
fn outcome_of(error: &Error, called: bool, body_failed: bool) -> Outcome {
    match error.failed() {
        _ if error.is_timeout() && !error.is_not_sent() => Outcome::Timeout,
        // An inner retry layer made several attempts, and the server may have processed one of them.
        _ if error.is_after_processing() => Outcome::Failed,
        _ if error.is_refusal() => Outcome::Refused,
        // If the request's body failed, the error may concern the connection that the body was read from.
        Failed::Service(proof) if called && (body_failed || !proof.not_sent) => Outcome::Failed,
        _ => Outcome::NotSent,
    }
}
