use std::{num::NonZeroU16, sync::Arc, time::Duration};

use http::{HeaderValue, StatusCode};

use crate::policy::{nanos, outcome::Outcome, retry::DelayReason};

/// The record of one attempt of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptReport {
    /// The number of this attempt, starting at 1.
    pub number: u32,
    /// The time from the start of the call to the start of this attempt.
    pub started: Duration,
    /// How long this attempt waited in the limiter's queue.
    pub queued: Duration,
    /// How long this attempt waited for its key or its signature. Includes the time in which the signature read the
    /// body.
    pub key_wait: Duration,
    /// How long this attempt waited for a connection or an HTTP/2 stream. Includes the time to open a connection. Only
    /// the crate's own [`transport`](crate::transport) reports this time.
    pub connection_wait: Duration,
    /// The times of the connection that was opened for this attempt, or of the last one. If the connection could not be
    /// opened, these are the times of the phases that ended before the failure. `None` if the attempt used an open
    /// connection, or ended while its connection was being opened.
    pub connect: Option<ConnectTimes>,
    /// The time from the start of the call to the moment at which the transport handed the request to a connection.
    /// `None` if the request was not sent, or if the client below the layers does not report it.
    pub sent: Option<Duration>,
    /// The time from the start of the call to the end of this attempt. `None` if the attempt was cancelled, by its
    /// caller or by the [total timeout](crate::request_id#notes).
    pub ended: Option<Duration>,
    /// How this attempt ended. `None` if it was cancelled, like `ended`.
    pub outcome: Option<Outcome>,
    /// The request id that the server sent with the response.
    pub server_request_id: Option<HeaderValue>,
    /// The delay before a retry that the server requested in its response. `None` if it requested no delay.
    pub requested_delay: Option<Duration>,
    /// The delay between this attempt and the next one. `None` if no attempt follows.
    pub delay: Option<Duration>,
    /// What determined the length of `delay`.
    pub delay_reason: Option<DelayReason>,
    /// The member of a [`Pool`](crate::stack::Pool) that this attempt was passed to, as its position in
    /// [`Pool::new`](crate::stack::Pool::new), starting at 0. `None` without a pool, or if the limiter refused the
    /// attempt.
    pub member: Option<usize>,
}

/// How long it took to open a connection. A phase that failed or was not reached has no time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectTimes {
    /// The time to resolve the host name. `None` for an address, and with a custom connector.
    pub resolve: Option<Duration>,
    /// The time to open the TCP connection, or the time of a custom connector. Includes the handshake with a proxy.
    /// `None` if no connection could be opened.
    pub connect: Option<Duration>,
    /// The time of the TLS handshake. `None` without TLS.
    pub tls: Option<Duration>,
}

/// Stores an [`AttemptReport`] in fewer bytes. Most calls never create the report.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) started: OptionalDuration,
    pub(super) queued: OptionalDuration,
    pub(super) key_wait: OptionalDuration,
    pub(super) connection_wait: OptionalDuration,
    pub(super) sent: OptionalDuration,
    pub(super) ended: OptionalDuration,
    pub(super) requested_delay: OptionalDuration,
    pub(super) delay: OptionalDuration,
    pub(super) connect: Option<Box<ConnectTimes>>,
    pub(super) server_request_id: Option<Arc<str>>,
    pub(super) outcome: Option<Outcome>,
    /// The name of the cause, if the attempt ended without a response.
    pub(super) failure: Option<&'static str>,
    pub(super) delay_reason: Option<DelayReason>,
    pub(super) member: OptionalMember,
}

impl Attempt {
    fn report(&self, number: u32) -> AttemptReport {
        AttemptReport {
            number,
            started: self.started.get().unwrap_or_default(),
            queued: self.queued.get().unwrap_or_default(),
            key_wait: self.key_wait.get().unwrap_or_default(),
            connection_wait: self.connection_wait.get().unwrap_or_default(),
            connect: self.connect.as_deref().copied(),
            sent: self.sent.get(),
            ended: self.ended.get(),
            outcome: self.outcome,
            server_request_id: self.server_request_id.as_deref().and_then(|id| id.parse().ok()),
            requested_delay: self.requested_delay.get(),
            delay: self.delay.get(),
            delay_reason: self.delay_reason,
            member: self.member.get(),
        }
    }
}

/// The position of an optional member, in 2 bytes. `None` above 65,534.
#[derive(Clone, Copy, Default)]
pub(super) struct OptionalMember(Option<NonZeroU16>);

impl OptionalMember {
    fn get(self) -> Option<usize> {
        Some(usize::from(self.0?.get()) - 1)
    }
}

impl From<usize> for OptionalMember {
    fn from(index: usize) -> Self {
        Self(u16::try_from(index.saturating_add(1)).ok().and_then(NonZeroU16::new))
    }
}

/// An optional duration, in 8 bytes. Durations above 584 years become [`Duration::MAX`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OptionalDuration(pub(super) u64);

impl OptionalDuration {
    pub(super) const NONE: Self = Self(u64::MAX);
    const LONGEST: u64 = u64::MAX - 1;

    pub(super) fn get(self) -> Option<Duration> {
        match self {
            Self::NONE => None,
            Self(Self::LONGEST) => Some(Duration::MAX),
            Self(stored) => Some(Duration::from_nanos(stored)),
        }
    }

    pub(super) fn add(&mut self, more: Duration) {
        *self = self.get().unwrap_or_default().saturating_add(more).into();
    }
}

impl Default for OptionalDuration {
    fn default() -> Self {
        Self::NONE
    }
}

impl From<Duration> for OptionalDuration {
    fn from(duration: Duration) -> Self {
        Self(nanos(duration).min(Self::LONGEST))
    }
}

impl From<Option<Duration>> for OptionalDuration {
    fn from(duration: Option<Duration>) -> Self {
        duration.map_or(Self::NONE, Self::from)
    }
}

/// The attempts of a call. The first attempt, which is the only one of most calls, needs no allocation.
#[derive(Default)]
pub(super) struct Attempts {
    earlier: Vec<Attempt>,
    pub(super) last: Option<Attempt>,
}

impl Attempts {
    pub(super) fn start(&mut self, started: OptionalDuration) {
        let attempt = Attempt { started, ..Attempt::default() };
        self.earlier.extend(self.last.replace(attempt));
    }

    /// Returns the number of the latest attempt, or 0 before the first.
    pub(super) fn number(&self) -> u32 {
        let earlier = u32::try_from(self.earlier.len()).unwrap_or(u32::MAX);
        self.last.as_ref().map_or(0, |_| earlier.saturating_add(1))
    }

    pub(super) fn reports(&self) -> Vec<AttemptReport> {
        self.iter().zip(1..).map(|(attempt, number)| attempt.report(number)).collect()
    }

    pub(super) fn last_report(&self) -> Option<AttemptReport> {
        Some(self.last.as_ref()?.report(self.number()))
    }

    /// Returns whether the server may have processed an attempt. `otherwise` is the result for the last attempt if it
    /// has no outcome, and without attempts.
    pub(super) fn were_processed(&self, otherwise: bool) -> bool {
        let processed = |attempt: &Attempt| {
            let outcome = attempt.outcome?;
            let is_resent = attempt.delay_reason == Some(DelayReason::KeyReplaced);
            let is_rejected = is_resent && outcome.status() == Some(StatusCode::UNAUTHORIZED);
            Some(!is_rejected && outcome.delivery().may_be_processed())
        };
        self.earlier.iter().any(|attempt| processed(attempt).unwrap_or(true))
            || self.last.as_ref().and_then(processed).unwrap_or(otherwise)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attempt> {
        self.earlier.iter().chain(&self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_duration_replaces_durations_above_584_years_with_the_maximum() {
        let longest = Duration::from_nanos(u64::MAX - 2);
        let stored = |duration: Duration| OptionalDuration::from(duration).get();
        assert_eq!(stored(Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(stored(longest), Some(longest));
        for above in [u64::MAX - 1, u64::MAX].map(Duration::from_nanos).into_iter().chain([Duration::MAX]) {
            assert_eq!(stored(above), Some(Duration::MAX));
        }
        assert_eq!(OptionalDuration::from(None).get(), None);
    }

    #[test]
    fn adding_to_an_absent_duration_starts_at_zero_and_saturates() {
        let mut sum = OptionalDuration::NONE;
        sum.add(Duration::from_nanos(3));
        assert_eq!(sum.get(), Some(Duration::from_nanos(3)));
        sum.add(Duration::from_nanos(u64::MAX - 5));
        assert_eq!(sum.get(), Some(Duration::from_nanos(u64::MAX - 2)));
        sum.add(Duration::from_nanos(1));
        assert_eq!(sum.get(), Some(Duration::MAX));
        sum.add(Duration::MAX);
        assert_eq!(sum.get(), Some(Duration::MAX));
    }
}
