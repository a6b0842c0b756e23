use std::{cell::LazyCell, fmt, time::Duration};

use http::{HeaderMap, Response, StatusCode};

use super::core::Feedback;
use crate::{
    call::CallContext,
    clock,
    policy::{
        self, QuotaName, Remaining, Unit,
        adaptive::Acceptance,
        dialect::{Dialect, STANDARD, Scope},
        feedback::{Reading, Throttle},
    },
};

/// The parts of a response that a limiter reads: status and headers.
#[derive(Clone)]
pub struct ResponseInfo<'a> {
    pub(crate) reading: Reading<'a>,
    /// Whether the quotas of a resource do not apply, because this part of the response concerns the account.
    is_of_account: bool,
    /// The call whose keys the names of quotas must not contain.
    call: Option<&'a CallContext>,
}

impl<'a> ResponseInfo<'a> {
    /// Reads the rate-limit headers of a response that has just arrived.
    ///
    /// - A requested delay pauses the limiter if the server is rejecting all requests: a 429, 503, 529, 420 or 509 with
    ///   `Retry-After`, a 403 or 418 with a `Retry-After` above zero or without remaining permits, or gRPC's pushback
    ///   or `RetryInfo`. With another status, such as a redirect, the delay concerns only one resource.
    /// - Remaining permits are read with every status. A limiter with a quota uses them only if the server is rejecting
    ///   requests, unless [`with_server_remaining`](super::LocalLimiter::with_server_remaining) is set.
    /// - The remaining permits are read from the headers of the IETF drafts, from `X-RateLimit-*`, and from those of
    ///   the services that the [guide](crate::guide::services) lists.
    #[inline]
    pub fn new(status: StatusCode, headers: &'a HeaderMap) -> Self {
        Self::of_call(Reading::new(&STANDARD, status, headers, None, clock::wall), None)
    }

    /// Reads the rate-limit headers of a response that has just arrived from a service with this dialect. A
    /// [`ServerSignal`](super::ServerSignal) in the extensions of the response takes precedence.
    #[inline]
    pub fn with_dialect<B>(dialect: &'a Dialect, response: &'a Response<B>) -> Self {
        Self::of_call(Reading::of(dialect, response, clock::wall), None)
    }

    /// Creates the info of a response to `call`. Redacts the name of each quota that contains a key of the call.
    /// Without a call the keys are unknown, so every name that is a text of the server is redacted.
    #[inline]
    pub(super) fn of_call(reading: Reading<'a>, call: Option<&'a CallContext>) -> Self {
        Self { reading, is_of_account: false, call }
    }

    fn shown_name(&self, quota: &Remaining) -> QuotaName {
        quota.name().unless(|text| self.call.is_none_or(|call| call.has_sent(text)))
    }

    /// Returns the name of the quota because of which the server rejected the request, and the time until its reset.
    pub(super) fn rejecting_quota(&self) -> Option<(QuotaName, Duration)> {
        if !self.reading.has_limits() || self.reading.throttle() != Throttle::Temporary {
            return None;
        }
        let empty = self.limiting().filter(|quota| quota.left() == 0 && !quota.reset_after().is_zero());
        let last = empty.max_by_key(Remaining::reset_after)?;
        Some((self.shown_name(&last), last.reset_after()))
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.reading.status
    }

    /// Returns the headers.
    pub fn headers(&self) -> &'a HeaderMap {
        self.reading.headers
    }

    /// Returns the delay that the server requested for all requests, counted from the arrival of this response.
    #[inline]
    pub fn requested_pause(&self) -> Option<Duration> {
        self.reading.pause()
    }

    /// Returns the part of this response that concerns the limits of one scope. Returns `None` if the server throttles
    /// because of the other scope.
    pub(super) fn concerning(&self, scope: Scope) -> Option<Self> {
        let stated = self.reading.scope();
        // The part of each scope then copies the parsed quotas.
        self.reading.remaining();
        let is_of_account = scope == Scope::Account && stated.is_none();
        stated.is_none_or(|stated| stated == scope).then(|| Self { is_of_account, ..self.clone() })
    }

    /// Returns the remaining permits that the server reported for each of its quotas. The first call parses the
    /// headers.
    pub fn remaining(&self) -> &[Remaining] {
        self.reading.remaining()
    }

    /// Returns the quotas that concern this part of the response.
    pub(super) fn quotas(&self) -> impl Iterator<Item = Remaining> {
        let applies = |quota: &&Remaining| !(self.is_of_account && quota.is_of_resource());
        self.remaining().iter().filter(applies).copied()
    }

    /// Returns the quotas that limit the next requests.
    pub(crate) fn limiting(&self) -> impl Iterator<Item = Remaining> {
        self.quotas().filter(self.limits())
    }

    /// Returns a predicate for the quotas that limit the next requests. A quota of tokens or points does not limit
    /// them, unless it caused a rejection without a stated delay.
    fn limits(&self) -> impl Fn(&Remaining) -> bool {
        // A stated delay takes precedence over the reset of a quota in another unit.
        let rejects = LazyCell::new(|| {
            self.requested_pause().is_none() && self.reading.acceptance() != Acceptance::Accepted
        });
        move |quota| quota.unit() == Unit::Requests || quota.left() == 0 && *rejects
    }
}

impl From<&ResponseInfo<'_>> for Feedback {
    fn from(response: &ResponseInfo<'_>) -> Self {
        let named = response.quotas().map(|quota| quota.named(response.shown_name(&quota)));
        let named: Vec<_> = named.collect();
        let limits = response.limits();
        let remaining = named.iter().filter(|quota| limits(quota)).copied().collect();
        let others = named.into_iter().filter(|quota| quota.unit() != Unit::Requests).collect();
        Self {
            acceptance: response.reading.acceptance(),
            is_success: response.status().is_success(),
            pause: response.requested_pause().map(policy::nanos),
            remaining,
            others,
        }
    }
}

impl fmt::Debug for ResponseInfo<'_> {
    // Does not write the headers, because the server may echo the key in a header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseInfo")
            .field("status", &self.status())
            .field("requested_pause", &self.requested_pause())
            .field("remaining", &self.remaining().len())
            .finish_non_exhaustive()
    }
}
