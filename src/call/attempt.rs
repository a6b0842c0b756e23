use std::time::Duration;

use http::HeaderValue;

use crate::policy::{outcome::Outcome, retry::DelayReason};

/// The record of one attempt of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptReport {
    /// The number of this attempt, starting at 1.
    pub number: u32,
    /// The time from the start of the call to the start of this attempt.
    pub started: Duration,
    /// How long this attempt waited for the limiter.
    pub waited: Duration,
    /// How long this attempt waited for a connection or an HTTP/2 stream. Includes the time to open a connection. Only
    /// the crate's own [`transport`](crate::transport) reports this time.
    pub connection_wait: Duration,
    /// The times of the connection that was opened for this attempt. `None` if the attempt used an open connection.
    pub connect: Option<ConnectTimes>,
    /// The time from the start of the call to the moment at which the transport handed the request to a connection.
    /// `None` if the request was not sent, or if the client below the layers does not report it.
    pub sent: Option<Duration>,
    /// The time from the start of the call to the end of this attempt. `None` if the attempt was cancelled.
    pub ended: Option<Duration>,
    /// How this attempt ended. `None` if it was cancelled.
    pub outcome: Option<Outcome>,
    /// The request id that the server sent with the response.
    pub server_request_id: Option<HeaderValue>,
    /// The delay before a retry that the server requested in its response. `None` if it requested no delay.
    pub requested_delay: Option<Duration>,
    /// The delay between this attempt and the next one. `None` if no attempt follows.
    pub delay: Option<Duration>,
    /// What determined the length of `delay`.
    pub delay_reason: Option<DelayReason>,
    /// The name of the cause, if the attempt ended without a response.
    pub(super) failure: Option<&'static str>,
}

/// How long it took to open a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectTimes {
    /// The time to resolve the host name. `None` for an address, and with a custom connector.
    pub resolve: Option<Duration>,
    /// The time to open the TCP connection, or the time of a custom connector. Includes the handshake with a proxy.
    pub connect: Duration,
    /// The time of the TLS handshake. `None` without TLS.
    pub tls: Option<Duration>,
}

/// The attempts of a call. The first attempt, which is the only one of most calls, needs no allocation.
#[derive(Default)]
pub(super) struct Attempts {
    earlier: Vec<AttemptReport>,
    pub(super) last: Option<AttemptReport>,
}

impl Attempts {
    pub(super) fn start(&mut self, started: Duration) {
        let number = self.number().saturating_add(1);
        let attempt = AttemptReport { number, started, ..AttemptReport::default() };
        self.earlier.extend(self.last.replace(attempt));
    }

    /// Returns the number of the latest attempt, or 0 before the first.
    pub(super) fn number(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.number)
    }

    /// Returns whether the server may have processed an attempt. `otherwise` is the result for the last attempt if it
    /// has no outcome, and without attempts.
    pub(super) fn were_processed(&self, otherwise: bool) -> bool {
        let processed = |attempt: &AttemptReport| Some(attempt.outcome?.delivery().may_be_processed());
        self.earlier.iter().any(|attempt| processed(attempt).unwrap_or(true))
            || self.last.as_ref().and_then(processed).unwrap_or(otherwise)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &AttemptReport> {
        self.earlier.iter().chain(&self.last)
    }
}
