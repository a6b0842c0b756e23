//! The facts about an attempt that the retry decision depends on.

use std::time::Duration;

use http::{Extensions, HeaderMap, Request, Response, StatusCode};

use super::{AttemptResult, RetryLayer, RetryOverride, policy::Policy};
use crate::{
    call::{KeyReplaced, Outcome, RequestHead},
    clock,
    error::{BoxError, Error, Failed, Reason, Refusal},
    policy::{
        RetryDecision,
        dialect::Dialect,
        feedback::Reading,
        grpc::{self, Code, Pushback},
        retry::{self, Delay, LastAttempt, NextStep, Retry, RetryState, Stop, is_idempotent},
    },
};

/// Marks a response that ended a call of several attempts, of which the server may have processed one. An outer retry
/// layer then does not take the response as a statement that the request was not processed.
#[derive(Clone)]
pub(super) struct AfterProcessing;

/// Returns decisions without a call, for tests of a layer's configuration.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::retry::{NextStep, RetryLayer};
/// use tower_outbound::call::{DelayReason, StopReason};
///
/// let layer = RetryLayer::new().with_max_attempts(2)?;
/// let request = http::Request::get("https://api.example.com/v1/rates").body(())?;
/// let busy = http::Response::builder().status(503).header("retry-after", "7").body(())?;
///
/// let mut state = layer.after_response(&request, &busy);
/// let NextStep::Retry { delay, reason, .. } = layer.decide(&state) else { panic!("expected a retry") };
/// assert_eq!((delay, reason), (Duration::from_secs(7), DelayReason::Requested));
///
/// state.attempts = 2;
/// assert!(matches!(layer.decide(&state), NextStep::Stop { reason: StopReason::Exhausted, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl RetryLayer {
    /// Returns the state of a call without a deadline whose first attempt ended with this response.
    ///
    /// The request's body counts as replayable. The request's [`RetryOverride`] applies.
    pub fn after_response<B, R>(&self, request: &Request<B>, response: &Response<R>) -> RetryState {
        let (status, headers, extensions) = (response.status(), response.headers(), response.extensions());
        let reading = read(&self.policy.dialect, status, headers, extensions);
        let outcome = of_response(response, Some(&reading));
        let (headers, extensions, reading) = (Some(headers), Some(extensions), Some(&reading));
        self.state(request, &AttemptResult { outcome, headers, extensions, error: None, reading })
    }

    /// Like [`after_response`](Self::after_response), for an attempt that ended with this error of the inner service.
    pub fn after_error<B>(&self, request: &Request<B>, error: impl Into<BoxError>) -> RetryState {
        let error = &Error::from_service(error);
        let outcome = of_error(error, !error.was_not_called(), false);
        let attempt =
            AttemptResult { outcome, headers: None, extensions: None, error: Some(error), reading: None };
        self.state(request, &attempt)
    }

    fn state<B>(&self, request: &Request<B>, attempt: &AttemptResult<'_>) -> RetryState {
        let (policy, head) = (&self.policy, RequestHead::of(request));
        let own = request.extensions().get().copied().unwrap_or(RetryOverride::new());
        let has_key = policy.idempotency_key.is_some();
        let idempotent =
            own.idempotent || has_key || policy.is_idempotent(request) || is_idempotent(head.method);
        let key_replaced = !own.never && is_key_replaced(attempt, idempotent);
        let last_attempt = policy.last_attempt(key_replaced, Some(head), attempt);
        let max_attempts = own.max_attempts.unwrap_or(policy.max_attempts);
        let requested_delay = attempt.reading.and_then(Reading::requested_delay);
        RetryState {
            max_attempts,
            idempotent,
            ..policy.state(last_attempt, attempt.outcome, requested_delay)
        }
    }

    /// Returns what the layer does after an attempt. Sends nothing, waits for nothing and spends no credit.
    ///
    /// The delay is without jitter: the longest one of an exponential backoff, or exactly the requested one. For a
    /// [custom backoff](Self::with_custom_backoff), all earlier retries of the call count as retries with that backoff.
    pub fn decide(&self, state: &RetryState) -> NextStep {
        let retries = state.attempts.saturating_sub(1);
        let longest = |reason| {
            let backoff = self.policy.backoff_after(reason);
            let longest = backoff.next(&mut backoff.remaining(retries), retries, u64::MAX)?;
            Some(Delay { spread: Duration::ZERO, ..longest })
        };
        match retry::decide(state, longest) {
            Ok(Retry { delay, reason, .. }) => NextStep::Retry { delay, reason },
            Err(Stop { reason, retry_after, .. }) => NextStep::Stop { reason, retry_after },
        }
    }
}

impl Policy {
    /// Returns the state after the first attempt of a call without a deadline. Its request is not idempotent and can be
    /// resent, and its response has no body.
    pub(super) fn state(
        &self,
        last_attempt: LastAttempt,
        outcome: Outcome,
        requested_delay: Option<Duration>,
    ) -> RetryState {
        let has_credit = match (last_attempt, &self.budget) {
            (LastAttempt::Classified(decision), Some(budget)) => budget.left() >= budget.cost_of(decision),
            _ => true,
        };
        RetryState {
            attempts: 1,
            max_attempts: self.max_attempts,
            idempotent: false,
            outcome,
            requested_delay,
            time_left: None,
            replayable: true,
            has_credit,
            last_attempt,
            retry_rejected: self.retry_rejected,
            max_retry_after: self.max_retry_after,
            other_member: None,
            has_body: false,
        }
    }

    /// Returns the part of the retry decision that depends only on the result of this attempt. `key_replaced` is `true`
    /// if the request may be resent with another key. `request` must be `Some` if
    /// [`shows_requests`](Self::shows_requests) returns `true`.
    pub(super) fn last_attempt(
        &self,
        key_replaced: bool,
        request: Option<RequestHead<'_>>,
        attempt: &AttemptResult<'_>,
    ) -> LastAttempt {
        // Checks for a replaced key first, because the rules and `x-should-retry` do not know that another key is
        // available. A request that received a 401 was not applied, whatever its method (RFC 9110 §15.5.2).
        if key_replaced {
            return LastAttempt::KeyReplaced;
        }
        if attempt.error.is_some_and(Error::is_deadline) {
            return LastAttempt::Deadline;
        }
        // After a 101, the caller owns the connection.
        if attempt.outcome == Outcome::Response(StatusCode::SWITCHING_PROTOCOLS) {
            return LastAttempt::Classified(RetryDecision::Success);
        }
        match self.classify(request, attempt) {
            RetryDecision::NotRetryable if attempt.error.is_some_and(is_refused_by_deadline) => {
                LastAttempt::Deadline
            }
            decision => LastAttempt::Classified(decision),
        }
    }
}

/// Reads the head of a response, which may contain the signal of an inner layer.
pub(super) fn read<'a>(
    dialect: &'a Dialect,
    status: StatusCode,
    headers: &'a HeaderMap,
    extensions: &Extensions,
) -> Reading<'a> {
    Reading::new(dialect, status, headers, extensions.get().copied(), clock::wall)
}

/// Returns the outcome of an attempt with a response.
pub(super) fn of_response<R>(response: &Response<R>, reading: Option<&Reading<'_>>) -> Outcome {
    let reading = reading.filter(|_| response.extensions().get::<AfterProcessing>().is_none());
    reading.map_or(Outcome::Response(response.status()), Outcome::of_response)
}

/// Returns the outcome of an attempt without a response.
///
/// `called` is `false` if the inner service did not become ready. `body_failed` is `true` if the request's body failed.
pub(super) fn of_error(error: &Error, called: bool, body_failed: bool) -> Outcome {
    match error.failed() {
        Failed::Layer if error.is_timeout() => Outcome::Timeout,
        // An inner retry layer made several attempts, and the server may have processed one of them.
        _ if error.is_after_processing() => Outcome::Failed,
        // The refusal may be that of the limiter from whose responses the body was read.
        _ if error.is_refusal() && body_failed => Outcome::Failed,
        _ if error.is_refusal() => Outcome::Refused,
        // If the request's body failed, the error may concern the connection that the body was read from.
        Failed::Service(proof) if called && (body_failed || !proof.not_sent) => Outcome::Failed,
        _ => Outcome::NotSent,
    }
}

/// Returns whether the server rejected a key that is being replaced, and a resend is safe.
pub(super) fn is_key_replaced(attempt: &AttemptResult<'_>, idempotent: bool) -> bool {
    let is_unauthenticated = |headers| {
        let code = idempotent && Code::in_head(headers) == Some(Code::UNAUTHENTICATED);
        code && grpc::pushback(headers) != Some(Pushback::Never)
    };
    attempt.error.is_none()
        && attempt.extension::<KeyReplaced>().is_some()
        && (attempt.status() == Some(StatusCode::UNAUTHORIZED)
            || attempt.headers.is_some_and(is_unauthenticated))
}

/// Returns whether the limiter refused the request because the wait would have ended after the deadline.
fn is_refused_by_deadline(error: &Error) -> bool {
    error.shown_cause::<Refusal>().is_some_and(|refusal| refusal.reason() == Reason::Deadline)
}
