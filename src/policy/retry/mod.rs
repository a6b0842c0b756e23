//! Decides after each attempt whether to retry, after which delay, or why to stop.

use std::time::Duration;

use super::{
    outcome::{Delivery, Outcome},
    retry_decision::RetryDecision,
};

#[cfg(test)]
mod tests;

/// The longest time for draining the body of a failed response. Its connection can then be reused.
const DRAIN_TIME: Duration = Duration::from_millis(100);

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

/// The part of a call's state that determines whether the call is retried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryState {
    /// The number of attempts so far. A resend with another key is not counted.
    pub(crate) attempts: u32,
    pub(crate) max_attempts: u32,
    /// Whether a retry is safe even if the server processed the request.
    pub(crate) idempotent: bool,
    pub(crate) retry_rejected: RetryRejected,
    pub(crate) max_retry_after: Duration,
}

impl RetryState {
    fn is_safe_after(&self, delivery: Delivery) -> bool {
        let is_unprocessed = match delivery {
            Delivery::NotSent => true,
            Delivery::Rejected => self.retry_rejected == RetryRejected::AnyMethod,
            Delivery::MaybeProcessed | Delivery::Processed => false,
        };
        self.idempotent || is_unprocessed
    }
}

/// The part of the retry decision that depends only on the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastAttempt {
    Classified(RetryDecision),
    /// The server rejected the key, and another key is available.
    KeyReplaced,
    /// The deadline of the call ended the attempt.
    Deadline,
}

/// The inputs of the retry decision that are known only after the attempt has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inputs {
    /// The delay that the server requested.
    pub(crate) requested: Option<Duration>,
    /// The backoff before the next attempt. `None` if a custom backoff returned no further delay.
    pub(crate) backoff: Option<Delay>,
    /// The time that remains until the deadline.
    pub(crate) time_left: Option<Duration>,
    pub(crate) replayable: bool,
    /// Whether the response has a body to drain.
    pub(crate) has_body: bool,
}

/// A backoff and a jitter. If the server requested a delay that is longer than the backoff, the jitter is added to the
/// requested delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delay {
    pub(crate) own: Duration,
    pub(crate) spread: Duration,
}

impl Delay {
    pub(crate) const NONE: Self = Self { own: Duration::ZERO, spread: Duration::ZERO };
}

/// The decision to make another attempt if the budget has enough credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) delay: Duration,
    /// The time for which the body of the failed response may be drained.
    pub(crate) drain: Duration,
    pub(crate) reason: DelayReason,
}

/// The decision to make no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) reason: StopReason,
    /// The delay that the next attempt would have needed.
    pub(crate) retry_after: Option<Duration>,
}

impl From<StopReason> for Stop {
    fn from(reason: StopReason) -> Self {
        Self { reason, retry_after: None }
    }
}

/// Returns which backoff the next attempt needs. Returns `None` for a resend with another key, which needs no backoff.
/// Returns an error if the call ends regardless of the backoff. The caller computes a backoff only if this function
/// returns a [`DelayReason`].
pub(crate) fn backoff_reason(
    state: &RetryState,
    outcome: Outcome,
    verdict: LastAttempt,
    requested: Option<Duration>,
) -> Result<Option<DelayReason>, Stop> {
    let reason = match verdict {
        LastAttempt::Deadline => return Err(StopReason::Deadline.into()),
        LastAttempt::Classified(RetryDecision::Success) => return Err(StopReason::Success.into()),
        LastAttempt::Classified(RetryDecision::NotRetryable) => return Err(StopReason::NotRetryable.into()),
        LastAttempt::Classified(RetryDecision::Transient) => Some(DelayReason::Transient),
        LastAttempt::Classified(RetryDecision::Throttled) => Some(DelayReason::Throttled),
        LastAttempt::KeyReplaced => None,
    };
    if reason.is_some() {
        if !state.is_safe_after(outcome.delivery()) {
            return Err(StopReason::NotIdempotent.into());
        }
        if state.attempts >= state.max_attempts {
            return Err(StopReason::Exhausted.into());
        }
    }
    if requested.is_some_and(|requested| requested > state.max_retry_after) {
        return Err(Stop { reason: StopReason::RequestedDelayTooLong, retry_after: requested });
    }
    Ok(reason)
}

/// Decides whether the request is resent after an attempt with this outcome, and after which delay.
///
/// The caller spends credit from the budget only after this function returns a retry, because other calls cannot use
/// spent credit.
pub(crate) fn decide(
    state: &RetryState,
    outcome: Outcome,
    verdict: LastAttempt,
    inputs: &Inputs,
) -> Result<Retry, Stop> {
    let requested = inputs.requested;
    let backoff_reason = backoff_reason(state, outcome, verdict, requested)?;
    let (delay, reason) = match (backoff_reason, requested) {
        (Some(reason), _) => {
            let Delay { own, spread } = inputs.backoff.ok_or(StopReason::Exhausted)?;
            match requested.filter(|requested| *requested > own) {
                // Adds the jitter instead of subtracting it, because a requested delay must not be shortened.
                Some(requested) => (requested.saturating_add(spread), DelayReason::Requested),
                None => (own, reason),
            }
        }
        (None, Some(requested)) => (requested, DelayReason::Requested),
        (None, None) => (Duration::ZERO, DelayReason::KeyReplaced),
    };
    // Without a delay, as before a resend with another key, a fixed time limits the drain of the failed response.
    let drain = if delay.is_zero() && inputs.has_body { DRAIN_TIME } else { DRAIN_TIME.min(delay) };
    // Draining must leave time for the next attempt, because a drained response can no longer be returned.
    let wait = delay.max(drain);
    if inputs.time_left.is_some_and(|left| wait >= left) {
        return Err(Stop { reason: StopReason::Deadline, retry_after: Some(wait) });
    }
    if !inputs.replayable {
        return Err(StopReason::NotReplayable.into());
    }
    Ok(Retry { delay, drain, reason })
}
