//! Decides after each attempt whether to retry, after which delay, or why to stop.

#[cfg(test)]
mod tests;

use std::time::Duration;

use http::{Method, StatusCode};

use super::outcome::{Delivery, Outcome};

/// The longest time for draining the body of a failed response. Its connection can then be reused.
pub(crate) const DRAIN_TIME: Duration = Duration::from_millis(100);

/// The reason why a call makes no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The response is a success.
    Success,
    /// Another attempt would have the same result, for example after a 404.
    NotRetryable,
    /// Another attempt might succeed, but the server may have processed the request, and the request is not idempotent.
    NotIdempotent,
    /// The body is longer than the replay limit, was read only in part, or is still held by the inner service, so it
    /// cannot be resent.
    NotReplayable,
    /// All `max_attempts` attempts were made, or the custom backoff returned no further delay.
    Exhausted,
    /// The next attempt could not start before the deadline.
    Deadline,
    /// The server requested a delay longer than `max_retry_after`.
    RequestedDelayTooLong,
    /// The retry budget is spent, because too many calls failed recently.
    Budget,
}

impl StopReason {
    /// Returns the reason in lower snake case, as in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NotRetryable => "not_retryable",
            Self::NotIdempotent => "not_idempotent",
            Self::NotReplayable => "not_replayable",
            Self::Exhausted => "exhausted",
            Self::Deadline => "deadline",
            Self::RequestedDelayTooLong => "requested_delay_too_long",
            Self::Budget => "budget",
        }
    }
}

/// What determined the length of the delay before an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DelayReason {
    /// The transient backoff.
    Transient,
    /// The throttled backoff, which is longer by default.
    Throttled,
    /// The server requested this delay, which is longer than the backoff.
    Requested,
    /// The server rejected the key, so the request is resent with another key, without a backoff.
    KeyReplaced,
}

impl DelayReason {
    /// Returns the reason in lower snake case, as in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Throttled => "throttled",
            Self::Requested => "requested",
            Self::KeyReplaced => "key_replaced",
        }
    }
}

/// Which requests are retried after the server has [rejected](Delivery::Rejected) them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryRejected {
    /// Requests with any method, because the server states that it did not process them.
    #[default]
    AnyMethod,
    /// Idempotent requests only, as after any other response.
    Idempotent,
}

/// What a retry layer knows after an attempt, as the input of [`RetryLayer::decide`](crate::retry::RetryLayer::decide).
///
/// [`RetryLayer::after_response`](crate::retry::RetryLayer::after_response) and
/// [`after_error`](crate::retry::RetryLayer::after_error) create it. A test then changes single fields.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RetryState {
    /// The number of attempts so far, at least 1. A resend with another key is not counted.
    pub attempts: u32,
    /// The maximum number of attempts, of the layer or of the request's [`RetryOverride`](crate::retry::RetryOverride).
    pub max_attempts: u32,
    /// Whether a retry is safe even if the server processed the request.
    pub idempotent: bool,
    /// How the last attempt ended. It determines whether a retry is safe. A change of this field does not classify
    /// the attempt again.
    pub outcome: Outcome,
    /// The delay that the server requested.
    pub requested_delay: Option<Duration>,
    /// The time that remains until the deadline. `None` without a deadline.
    pub time_left: Option<Duration>,
    /// Whether the body of the request can be sent again.
    pub replayable: bool,
    /// Whether the budget has enough credit for the retry.
    pub has_credit: bool,
    pub(crate) last_attempt: LastAttempt,
    pub(crate) retry_rejected: RetryRejected,
    pub(crate) max_retry_after: Duration,
    /// When another member of a pool is expected to grant the permits of the next attempt.
    pub(crate) other_member: Option<Duration>,
    /// Whether the response has a body to drain.
    pub(crate) has_body: bool,
}

/// The part of the retry decision that depends only on the result of the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastAttempt {
    Classified(RetryDecision),
    /// The server rejected the key, and another key is available.
    KeyReplaced,
    /// The deadline of the call ended the attempt.
    Deadline,
}

/// A backoff and a jitter. If the server requested a delay that is longer than the backoff, the jitter is added to the
/// requested delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delay {
    pub(crate) own: Duration,
    pub(crate) spread: Duration,
}

impl Delay {
    /// Returns the delay that the server requested, if it is longer than the backoff. Adds the jitter instead of
    /// subtracting it, because a requested delay must not be shortened.
    fn requested(self, requested: Option<Duration>) -> Option<Duration> {
        let requested = requested.filter(|requested| *requested > self.own)?;
        Some(requested.saturating_add(self.spread))
    }
}

/// What a retry layer does after an attempt: see [`RetryLayer::decide`](crate::retry::RetryLayer::decide).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextStep {
    /// The layer makes another attempt.
    #[non_exhaustive]
    Retry {
        /// The delay before the attempt.
        delay: Duration,
        /// What determined the delay.
        reason: DelayReason,
    },
    /// The layer returns the last response or error.
    #[non_exhaustive]
    Stop {
        /// Why the call ends.
        reason: StopReason,
        /// The delay that the next attempt would have needed, if the deadline or the maximum delay prevents it.
        retry_after: Option<Duration>,
    },
}

/// The decision to make another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) delay: Duration,
    pub(crate) reason: DelayReason,
    /// The time for which the body of the failed response may be drained.
    pub(crate) drain: Duration,
    /// The time for which the next attempt must not go to the pool member of the last attempt.
    pub(crate) member_delay: Option<Duration>,
}

/// The decision to make no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) reason: StopReason,
    /// The delay that the next attempt would have needed.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the last response is [permanent](crate::limit::ServerSignal::with_permanent).
    pub(crate) is_permanent: bool,
}

impl From<StopReason> for Stop {
    fn from(reason: StopReason) -> Self {
        Self { reason, retry_after: None, is_permanent: false }
    }
}

/// Decides whether the request is resent after an attempt, and after which delay.
///
/// `backoff` returns the backoff before the next attempt, or `None` after the end of a custom backoff. It is called at
/// most once, and only if the decision needs it, because it draws a random number or a custom delay.
pub(crate) fn decide(
    state: &RetryState,
    backoff: impl FnOnce(DelayReason) -> Option<Delay>,
) -> Result<Retry, Stop> {
    let reason = match state.last_attempt {
        LastAttempt::Deadline => return Err(StopReason::Deadline.into()),
        LastAttempt::Classified(RetryDecision::Success) => return Err(StopReason::Success.into()),
        LastAttempt::Classified(RetryDecision::NotRetryable) => return Err(StopReason::NotRetryable.into()),
        LastAttempt::Classified(RetryDecision::Transient) => DelayReason::Transient,
        LastAttempt::Classified(RetryDecision::Throttled) => DelayReason::Throttled,
        LastAttempt::KeyReplaced => DelayReason::KeyReplaced,
    };
    let is_retry = reason != DelayReason::KeyReplaced;
    let is_unprocessed = match state.outcome.delivery() {
        Delivery::NotSent => true,
        Delivery::Rejected => state.retry_rejected == RetryRejected::AnyMethod,
        Delivery::MaybeProcessed | Delivery::Processed => false,
    };
    if is_retry && !state.idempotent && !is_unprocessed {
        return Err(StopReason::NotIdempotent.into());
    }
    if is_retry && state.attempts >= state.max_attempts {
        return Err(StopReason::Exhausted.into());
    }
    // If another member of a pool grants the permits earlier, only the member of the last attempt gets the requested
    // delay.
    let other_member = state.other_member.filter(|wait| *wait <= state.max_retry_after);
    let (of_member, requested) = match state.requested_delay {
        Some(delay) if other_member.is_some_and(|wait| wait < delay) => (Some(delay), None),
        requested => (None, requested),
    };
    if requested.is_some_and(|requested| requested > state.max_retry_after) {
        return Err(Stop { retry_after: requested, ..StopReason::RequestedDelayTooLong.into() });
    }
    let none = Delay { own: Duration::ZERO, spread: Duration::ZERO };
    let mut own = if is_retry { backoff(reason).ok_or(StopReason::Exhausted)? } else { none };
    let mut member_delay = own.requested(of_member);
    if reason == DelayReason::Throttled {
        member_delay = member_delay.or(other_member.filter(|wait| *wait < own.own).map(|_| own.own));
        own = if member_delay.is_some() { none } else { own };
    }
    let (delay, reason) = match own.requested(requested) {
        Some(delay) => (delay, DelayReason::Requested),
        None => (own.own, reason),
    };
    // Without a delay, as before a resend with another key, a fixed time limits the drain of the failed response.
    let drain = if delay.is_zero() && state.has_body { DRAIN_TIME } else { DRAIN_TIME.min(delay) };
    // Draining must leave time for the next attempt, because a drained response can no longer be returned.
    let wait = delay.max(drain);
    if state.time_left.is_some_and(|left| wait >= left) {
        return Err(Stop { retry_after: Some(wait), ..StopReason::Deadline.into() });
    }
    if !state.replayable {
        return Err(StopReason::NotReplayable.into());
    }
    if is_retry && !state.has_credit {
        return Err(StopReason::Budget.into());
    }
    Ok(Retry { delay, reason, drain, member_delay })
}

/// Decides whether a retry may succeed, and selects its backoff.
///
/// A [`Classify`](crate::retry::Classify) returns this decision. The retry layer decides separately whether a retry is
/// safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryDecision {
    /// The attempt succeeded.
    Success,
    /// The failure is temporary. A retry waits for the transient backoff.
    Transient,
    /// The server rejects requests under load. A retry waits for the throttled backoff.
    Throttled,
    /// No retry, because another attempt would also fail.
    NotRetryable,
}

impl RetryDecision {
    /// Returns the default decision for a response with this status.
    ///
    /// | status | decision |
    /// |---|---|
    /// | 1xx, 2xx, 3xx | success |
    /// | 429, 529 (overloaded) | throttled |
    /// | 408, 500, 502, 503, 504 | transient |
    /// | 520–524, 530: a CDN could not reach its origin | transient |
    /// | any other status, such as 409, 501 and 505 | not retryable |
    ///
    /// A 409 is a conflict that only the caller can resolve. A server that returns 501 or 505 does not support the
    /// request.
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            ..400 => Self::Success,
            408 | 429 | 500 | 502 | 503 | 504 | 520..=524 | 529 | 530 => Self::retry(Some(status)),
            _ => Self::NotRetryable,
        }
    }

    /// Returns the decision to retry after this status: throttled for 429 and 529, otherwise transient. `None` means
    /// that no response arrived, which is a transient failure.
    pub(crate) fn retry(status: Option<StatusCode>) -> Self {
        match status.map(|status| status.as_u16()) {
            Some(429 | 529) => Self::Throttled,
            _ => Self::Transient,
        }
    }
}

/// Returns whether the method is idempotent (RFC 9110 §9.2.2).
pub(crate) fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE].contains(method)
}
