use std::{fmt, time::Duration};

use http::{HeaderValue, StatusCode};

/// One attempt of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptReport {
    pub(super) number: u32,
    pub(super) started: Duration,
    pub(super) waited: Duration,
    pub(super) ended: Option<Duration>,
    pub(super) outcome: Option<Outcome>,
    pub(super) server_request_id: Option<HeaderValue>,
    pub(super) asked: Option<Duration>,
    pub(super) delay: Option<(Duration, DelayReason)>,
}

/// The attempts of a call. Most calls have one, which needs no list.
#[derive(Default)]
pub(super) struct Attempts {
    first: Option<AttemptReport>,
    later: Vec<AttemptReport>,
}

impl Attempts {
    /// Gives its number.
    pub(super) fn start(&mut self, started: Duration) -> u32 {
        let number = self.last().map_or(1, |last| last.number.saturating_add(1));
        let attempt = AttemptReport {
            number,
            started,
            waited: Duration::ZERO,
            ended: None,
            outcome: None,
            server_request_id: None,
            asked: None,
            delay: None,
        };
        match self.first {
            None => self.first = Some(attempt),
            Some(_) => self.later.push(attempt),
        }
        number
    }

    pub(super) fn last(&self) -> Option<&AttemptReport> {
        self.later.last().or(self.first.as_ref())
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut AttemptReport> {
        self.later.last_mut().or(self.first.as_mut())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AttemptReport> {
        self.first.iter().chain(&self.later)
    }

    pub(super) fn len(&self) -> usize {
        self.first.iter().len() + self.later.len()
    }
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl AttemptReport {
    /// Its number, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// When it started, counted from the start of the call.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// When it ended, counted from the start of the call; none when it was cut off.
    pub fn ended(&self) -> Option<Duration> {
        self.ended
    }

    /// How long it waited for the limiter.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How it ended; none when it was cut off.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// The id that the server gave its answer.
    pub fn server_request_id(&self) -> Option<&HeaderValue> {
        self.server_request_id.as_ref()
    }

    /// The pause that the server asked for in its answer.
    pub fn asked(&self) -> Option<Duration> {
        self.asked
    }

    /// The back-off before the next attempt; none when there was no next one.
    pub fn delay(&self) -> Option<Duration> {
        self.delay.map(|(delay, _)| delay)
    }

    /// Why that back-off had its length.
    pub fn delay_reason(&self) -> Option<DelayReason> {
        self.delay.map(|(_, reason)| reason)
    }
}

/// Why a back-off had its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DelayReason {
    /// The back-off after a failure that passes by itself.
    Transient,
    /// The back-off after a throttling, which is longer.
    Throttled,
    /// The server asked for more than the back-off.
    Asked,
    /// There was none: the server refused the key, another one is there or on its way ([`KeyReplaced`](super::KeyReplaced)), and the request is sent once more with that.
    KeyReplaced,
}

impl DelayReason {
    /// The reason in one word, as it stands in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Throttled => "throttled",
            Self::Asked => "asked",
            Self::KeyReplaced => "key_replaced",
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The server answered with this status.
    Answer(StatusCode),
    /// The attempt's own timeout ran out.
    Timeout,
    /// The limiter refused it; it was not sent.
    Refused,
    /// It failed before anything could reach the server.
    NotSent,
    /// It failed, and the server may have processed it.
    Failed,
}

impl Outcome {
    /// The status, or the failure in a word or two.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Answer(status) => status.as_str(),
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::NotSent => "not sent",
            Self::Failed => "failed",
        }
    }
}

/// Why a call made no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The answer is a success.
    Success,
    /// Another attempt would not help: a status such as 404, a refusal, a credential that can't be sent.
    NotRetryable,
    /// Another attempt might help, but the server may have processed the request and its method is not
    /// idempotent.
    NotIdempotent,
    /// The body was over the replay limit, or had not been read whole when the attempt failed.
    NotReplayable,
    /// `max_attempts` attempts were made, or the schedule has no further back-off.
    Exhausted,
    /// The next attempt could not have started within the deadline.
    Deadline,
    /// The server asked for a longer pause than the layer's `max_retry_after`.
    AskedTooLong,
    /// The layer's budget of retries was used up: too many calls have failed lately.
    Budget,
}

impl StopReason {
    const ALL: [Self; 8] = [
        Self::Success,
        Self::NotRetryable,
        Self::NotIdempotent,
        Self::NotReplayable,
        Self::Exhausted,
        Self::Deadline,
        Self::AskedTooLong,
        Self::Budget,
    ];

    /// As a number, which needs no lock; never 0.
    pub(super) fn code(self) -> u8 {
        self as u8 + 1
    }

    pub(super) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.code() == code)
    }

    /// The reason in one word, as it stands in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NotRetryable => "not_retryable",
            Self::NotIdempotent => "not_idempotent",
            Self::NotReplayable => "not_replayable",
            Self::Exhausted => "exhausted",
            Self::Deadline => "deadline",
            Self::AskedTooLong => "asked_too_long",
            Self::Budget => "budget",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_a_code_of_its_own() {
        // Every one there is, or the match is not whole.
        let next = |ended| match ended {
            StopReason::Success => Some(StopReason::NotRetryable),
            StopReason::NotRetryable => Some(StopReason::NotIdempotent),
            StopReason::NotIdempotent => Some(StopReason::NotReplayable),
            StopReason::NotReplayable => Some(StopReason::Exhausted),
            StopReason::Exhausted => Some(StopReason::Deadline),
            StopReason::Deadline => Some(StopReason::AskedTooLong),
            StopReason::AskedTooLong => Some(StopReason::Budget),
            StopReason::Budget => None,
        };
        let all: Vec<_> = std::iter::successors(Some(StopReason::Success), |ended| next(*ended)).collect();
        assert!(
            all.iter().all(|ended| ended.code() != 0 && StopReason::of_code(ended.code()) == Some(*ended))
        );
        assert_eq!((all, StopReason::of_code(0)), (StopReason::ALL.to_vec(), None));
    }
}
