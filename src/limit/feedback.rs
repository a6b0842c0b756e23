use std::{cell::OnceCell, fmt, time::Duration};

use http::{HeaderMap, StatusCode};

use super::core::Feedback;
use crate::{
    clock::{self, Instant},
    policy::{self, adaptive::Acceptance, grpc::Code, rate_limit::Remaining},
};

/// The parts of a response that a limiter reads: status, headers and time of arrival.
#[derive(Clone)]
pub struct ResponseInfo<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    received_at: Option<Instant>,
    /// Whether the status or a header may concern the rate limit.
    has_limits: bool,
    pause: Option<Duration>,
    /// Parsed when it is first read.
    remaining: OnceCell<Vec<Remaining>>,
}

impl<'a> ResponseInfo<'a> {
    /// Reads the rate-limit headers of a response that has just arrived.
    ///
    /// - A requested delay pauses the limiter if the server is rejecting all requests: a 429, 503 or 529 with
    ///   `Retry-After`, or gRPC's pushback or `RetryInfo`. With another status, such as a redirect, the delay concerns
    ///   only one resource.
    /// - Remaining permits are read with every status. A limiter with a quota uses them only if the server is rejecting
    ///   requests, unless [`with_server_remaining`](super::LocalLimiter::with_server_remaining) is set.
    /// - The remaining permits are read from `RateLimit` with `RateLimit-Policy` (IETF drafts), `RateLimit-Remaining`
    ///   with `RateLimit-Reset`, or `X-RateLimit-Remaining` with `X-RateLimit-Reset`.
    #[inline]
    pub fn new(status: StatusCode, headers: &'a HeaderMap) -> Self {
        let mut info = Self {
            status,
            headers,
            received_at: None,
            has_limits: matches!(status.as_u16(), 429 | 529) || policy::feedback::has_limits(headers),
            pause: None,
            remaining: OnceCell::new(),
        };
        // One scan over the header names suffices for most responses, because most have no rate-limit header.
        if info.has_limits {
            let is_throttled = policy::feedback::is_throttled(status, headers);
            let requested = is_throttled.then(|| policy::feedback::pause(headers, clock::wall)).flatten();
            info.pause = requested.filter(|pause| !pause.is_zero());
        }
        info
    }

    /// Sets when the response arrived. Default: the time at which [`received_at`](Self::received_at) is called.
    pub fn with_received_at(mut self, received_at: Instant) -> Self {
        self.received_at = Some(received_at);
        self
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the headers.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns when the response arrived.
    pub fn received_at(&self) -> Instant {
        self.received_at.unwrap_or_else(clock::now)
    }

    /// Returns the delay that the server requested for all requests, counted from the arrival of this response.
    pub fn requested_pause(&self) -> Option<Duration> {
        self.pause
    }

    /// Returns whether the status or a header may concern the rate limit.
    pub(super) fn has_limits(&self) -> bool {
        self.has_limits
    }

    /// Returns whether the server's rate limit accepted the request.
    pub(crate) fn acceptance(&self) -> Acceptance {
        let code = if self.has_limits { Code::in_head(self.headers) } else { None };
        let has_no_permits = || self.remaining().iter().any(|remaining| remaining.left() == 0);
        policy::feedback::acceptance(self.status, code, has_no_permits)
    }

    /// Returns the remaining permits that the server reported for each of its quotas. The first call parses the
    /// headers.
    pub fn remaining(&self) -> &[Remaining] {
        match self.has_limits {
            true => self.remaining.get_or_init(|| policy::rate_limit::remaining(self.headers, clock::wall)),
            false => &[],
        }
    }
}

impl From<&ResponseInfo<'_>> for Feedback {
    fn from(response: &ResponseInfo<'_>) -> Self {
        Self {
            acceptance: response.acceptance(),
            pause: response.requested_pause().map(policy::nanos),
            remaining: response.remaining().to_vec(),
        }
    }
}

impl fmt::Debug for ResponseInfo<'_> {
    // Does not write the headers, because the server may echo the key in a header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseInfo")
            .field("status", &self.status)
            .field("requested_pause", &self.pause)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
