//! The state that the attempts of a call share, and the decision after each attempt.

use std::{sync::Arc, time::Duration};

use http::{
    Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TRAILER},
};
use http_body::Body;

use super::{
    AttemptResult,
    decision::{self, AfterProcessing},
    policy::{Policy, RemainingDelays},
};
use crate::{
    body::{BrokenResponse, Replay, ReplayBody},
    call::{CallContext, Delivery, RecordedHead, RequestHead, StopReason},
    clock,
    error::{Error, ErrorKind},
    policy::{
        RetryDecision,
        feedback::Reading,
        grpc::Code,
        retry::{self, DelayReason, LastAttempt, Retry, RetryRejected, RetryState, Stop},
    },
    telemetry::{self, ResponseSummary},
};

/// The recorded request and the state of its attempts.
pub(super) struct Attempts<B> {
    pub(super) policy: Arc<Policy>,
    pub(super) call: CallContext,
    pub(super) head: RecordedHead,
    /// The head of the request, for a classifier or a condition.
    pub(super) shown: Option<Box<Request<()>>>,
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
    /// Whether the last attempt repeats another one with another key.
    pub(super) resent: bool,
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
    /// Counts an attempt that is about to start. Returns an error if the deadline has passed.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        telemetry::deferred_attempt(&self.call);
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
        let policy = &*self.policy;
        let head = match (response, &broken) {
            (Some(response), _) => Some((response.status(), response.headers(), response.extensions())),
            (None, Some(broken)) => Some((broken.head.status, &broken.head.headers, &broken.head.extensions)),
            (None, None) => None,
        };
        let (headers, extensions) = head.map(|(_, headers, extensions)| (headers, extensions)).unzip();
        let reading = head.map(|(status, headers, extensions)| {
            decision::read(&policy.dialect, status, headers, extensions)
        });
        let outcome = match result {
            Ok(response) => decision::of_response(response, reading.as_ref()),
            Err(error) => decision::of_error(error, called, self.replay.has_failed()),
        };
        let budget = policy.budget.as_ref();
        budget.filter(|_| broken.is_some() && self.count > 1).inspect(|budget| budget.take_back());
        let requested_delay = reading.as_ref().and_then(Reading::requested_delay);
        let failure = error.map(|error| error.kind().as_str());
        let code = headers.and_then(Code::in_head).filter(|code| *code != Code::OK);
        let failure = failure.or(code.map(Code::name));
        let number = self.call.end_attempt(outcome, failure, requested_delay, headers);

        let attempt = AttemptResult { outcome, headers, extensions, error, reading: reading.as_ref() };
        let is_permanent = reading.as_ref().is_some_and(Reading::is_permanent);
        let key_replaced = self.resends
            && !is_permanent
            && decision::is_key_replaced(&attempt, self.idempotent)
            && !self.call.is_key_replaced();
        // A 401 states that the request was not processed, unless an inner retry layer has sent it before.
        let is_rejected = key_replaced
            && outcome.status() == Some(StatusCode::UNAUTHORIZED)
            && attempt.extension::<AfterProcessing>().is_none();
        self.maybe_processed |= !is_rejected && outcome.delivery().may_be_processed();
        // A permanent throttle of one member of a pool does not prevent a retry at another one.
        let is_soon = |wait| wait <= policy.max_retry_after;
        let moves = is_permanent && self.release_member(outcome.delivery()).is_some_and(is_soon);
        let temporary = if moves { reading.clone().map(Reading::into_temporary) } else { None };
        let attempt = AttemptResult { reading: temporary.as_ref().or(attempt.reading), ..attempt };
        let request = self.shown.as_deref().map(RequestHead::of);
        let last_attempt = policy.last_attempt(key_replaced, request, &attempt);
        let failed = last_attempt != LastAttempt::Classified(RetryDecision::Success);
        let cost = self.cost.take();
        // If a retry was not sent, its cost is returned to the budget. A resend with another key is an exception,
        // because it repeats a retry that the server has already received.
        let unsent = !called && cost.is_some() && !self.resent;
        budget.filter(|_| unsent || !failed).inspect(|budget| budget.succeeded(cost));
        let deadline = if failed { self.call.deadline() } else { None };
        let state = RetryState {
            attempts: self.count,
            max_attempts: self.max_attempts,
            idempotent: self.idempotent,
            time_left: deadline.map(|ends| ends.saturating_duration_since(clock::now())),
            replayable: failed
                && self.replay.is_replayable()
                && broken.as_ref().is_none_or(|broken| broken.is_replayable),
            other_member: (failed && !key_replaced)
                .then(|| self.release_member(outcome.delivery()))
                .flatten(),
            has_body: response.is_some_and(|response| !response.body().is_end_stream()),
            ..policy.state(last_attempt, outcome, requested_delay)
        };
        let decided = retry::decide(&state, |reason| {
            let delays = match reason {
                DelayReason::Throttled => &mut self.throttled_delays,
                _ => &mut self.transient_delays,
            };
            policy.backoff_after(reason).next(delays, self.count.saturating_sub(1), policy.random.next())
        });
        let decided = decided.map_err(|stop| Stop {
            retry_after: stop
                .retry_after
                .or(error.filter(|error| error.is_refusal()).and_then(Error::retry_after)),
            is_permanent,
            ..stop
        });
        let is_only = decided.is_err() && broken.is_none() && number == 1;
        telemetry::attempt(&self.call, result.as_ref().map(ResponseSummary::of), is_only);
        let retry = decided?;
        self.resent = key_replaced;
        // Another task may have changed the body or the budget after the decision.
        let body = self.replay.body().ok_or(StopReason::NotReplayable)?;
        match (last_attempt, budget) {
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
        // The member that is throttled permanently may expect to grant the permits earlier than the other one.
        let left_for = moves.then_some(policy.max_retry_after);
        if let Some(delay) = retry.member_delay.max(left_for) {
            self.call.delay_member(clock::after(clock::now(), delay));
        }
        self.call.retry(&retry, key_replaced);
        telemetry::retry(&self.call, retry.delay, retry.reason);
        Ok((body, retry))
    }

    /// Records whether the next attempt may go to another member of a pool. It may if no member may have processed the
    /// request, or if a replay is safe at any member. An idempotency key makes a replay safe at one member only.
    /// Returns when another member is expected to grant the permits.
    fn release_member(&self, delivery: Delivery) -> Option<Duration> {
        let counts_rejected = self.policy.retry_rejected == RetryRejected::Idempotent;
        let is_rejected = counts_rejected && delivery == Delivery::Rejected;
        self.call.release_member(self.moves, self.maybe_processed || is_rejected)
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

/// Returns the `content-length` of a request, and whether trailers may follow its body.
pub(super) fn framing<B: Body>(request: &Request<B>) -> (Option<u64>, bool) {
    let headers = request.headers();
    // Most requests have no body. For them, the lookups in the headers are skipped.
    if request.body().is_end_stream() {
        return (None, false);
    }
    let length = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    (length(), headers.contains_key(TRAILER))
}
