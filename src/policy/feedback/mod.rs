//! Reads from a response how long the caller must wait before the next request.

use std::{
    cell::OnceCell,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, Response, StatusCode};

use super::{
    adaptive::Acceptance,
    dialect::{Dialect, LeavesMember, Scope, ServerSignal},
    grpc::{self, Code},
    rate_limit::{self, Remaining},
};

pub(super) mod delays;
#[cfg(test)]
mod tests;

pub(crate) use self::delays::{has_limits, retry_after};

/// The headers that state the scope of a throttled response, and their values. A value that ends with `-` is the
/// beginning of several. Discord, Stripe and Jira send them.
static SCOPES: [(HeaderName, [(&str, Scope); 3]); 3] = [
    (
        HeaderName::from_static("x-ratelimit-scope"),
        [("global", Scope::Account), ("user", Scope::Endpoint), ("shared", Scope::Endpoint)],
    ),
    (
        HeaderName::from_static("stripe-rate-limited-reason"),
        [("global-", Scope::Account), ("endpoint-", Scope::Endpoint), ("resource-specific", Scope::Endpoint)],
    ),
    (
        HeaderName::from_static("ratelimit-reason"),
        [
            ("jira-quota-", Scope::Account),
            ("jira-burst-", Scope::Endpoint),
            ("jira-per-issue-", Scope::Endpoint),
        ],
    ),
];

/// Whether the server rejects requests because there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Throttle {
    No,
    Temporary,
    /// Another attempt fails until somebody changes something.
    Permanent,
}

/// Returns whether a response with this status is a throttle without any further evidence.
#[inline]
fn is_throttle_status(dialect: &Dialect, status: StatusCode) -> bool {
    // No dialect throttles with a status below 400, which most responses have.
    status.as_u16() >= 400
        && (matches!(status.as_u16(), 420 | 429 | 509 | 529) || dialect.throttles_with(status))
}

/// A response, as a dialect reads it.
#[derive(Clone)]
pub(crate) struct Reading<'a> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    dialect: &'a Dialect,
    /// Boxed, because few responses have a signal, and copies of it cost each response 5 ns.
    signal: Option<Box<ServerSignal>>,
    /// Whether a header may concern a limit.
    has_headers: bool,
    /// Whether the status, a header or the signal may concern a limit. Most responses need no other check.
    has_limits: bool,
    wall: fn() -> SystemTime,
    /// Computed at most once, because several checks need it.
    acceptance: OnceCell<Acceptance>,
    /// Computed at most once, because without a `Date` a later reading of the clock gives a shorter delay.
    pause: OnceCell<Option<Duration>>,
    /// Parsed when it is first read.
    remaining: OnceCell<Vec<Remaining>>,
}

impl<'a> Reading<'a> {
    /// Reads a response. `mark` is the signal of an inner layer. A response without a `Date` was sent at the time of
    /// the clock `wall`.
    #[inline]
    pub(crate) fn new(
        dialect: &'a Dialect,
        status: StatusCode,
        headers: &'a HeaderMap,
        mark: Option<ServerSignal>,
        wall: fn() -> SystemTime,
    ) -> Self {
        let signal = mark.or_else(|| dialect.signal(status, headers)).map(Box::new);
        let has_headers = has_limits(headers) || dialect.reads_any(headers);
        let has_limits = has_headers || signal.is_some() || is_throttle_status(dialect, status);
        Self {
            status,
            headers,
            dialect,
            signal,
            has_headers,
            has_limits,
            wall,
            acceptance: OnceCell::new(),
            pause: OnceCell::new(),
            remaining: OnceCell::new(),
        }
    }

    /// Reads a response with the signal in its extensions.
    #[inline]
    pub(crate) fn of<B>(dialect: &'a Dialect, response: &'a Response<B>, wall: fn() -> SystemTime) -> Self {
        let mark = response.extensions().get().copied();
        let reading = Self::new(dialect, response.status(), response.headers(), mark, wall);
        let is_left = reading.is_permanent() && response.extensions().get::<LeavesMember>().is_some();
        if is_left { reading.into_temporary() } else { reading }
    }

    /// Treats a permanent throttle as a temporary one, because another member of a pool may serve the request.
    pub(crate) fn into_temporary(mut self) -> Self {
        if let Some(signal) = &mut self.signal {
            (signal.is_permanent, signal.is_throttled) = (false, true);
        }
        Self { acceptance: OnceCell::new(), ..self }
    }

    /// Returns whether the status or a header may concern a limit.
    #[inline]
    pub(crate) fn has_limits(&self) -> bool {
        self.has_limits
    }

    /// Returns whether the status says that the server rejects requests because there are too many.
    #[inline]
    fn is_rejecting(&self) -> bool {
        is_throttle_status(self.dialect, self.status)
            || matches!(self.status.as_u16(), 403 | 418) && self.asks_to_wait()
    }

    /// Returns whether the headers request a delay, or report a quota without remaining permits. A delay of zero is no
    /// request: Jira Data Center sends it while permits remain.
    fn asks_to_wait(&self) -> bool {
        let delay = || self.retry_after().filter(|delay| !delay.is_zero());
        self.has_headers && (delay().is_some() || self.has_no_permits())
    }

    /// Returns whether the server accepted the request, with regard to its rate limit. Otherwise it is currently
    /// rejecting all requests, not only this one.
    ///
    /// | response | accepted |
    /// |---|---|
    /// | 429, 503, 529 (overloaded), 509 (bandwidth exceeded), 420 (EVE Online), a status of the dialect | no |
    /// | 403 (GitHub, Salesforce) and 418 (Binance) | unless it requests a delay, or reports a quota without permits |
    /// | gRPC's `RESOURCE_EXHAUSTED` or `UNAVAILABLE` in the response headers, with any HTTP status | no |
    /// | any other status | yes |
    ///
    /// The `Retry-After` of a response that is not accepted pauses every caller of the limiter. The `Retry-After` of
    /// any other response delays only the call that received the response. The statuses 520–524 and 530 report a failed
    /// exchange between a CDN and its origin. These statuses also delay only one call, because one slow resource must
    /// not stop all callers.
    #[inline]
    pub(crate) fn acceptance(&self) -> Acceptance {
        *self.acceptance.get_or_init(|| self.read_acceptance())
    }

    fn read_acceptance(&self) -> Acceptance {
        if let Some(signal) = &self.signal {
            let is_throttled = signal.is_throttled && !signal.is_permanent;
            return if is_throttled { Acceptance::Throttled } else { Acceptance::Accepted };
        }
        let code = if self.has_headers { Code::in_head(self.headers) } else { None };
        if self.is_rejecting() || code == Some(Code::RESOURCE_EXHAUSTED) {
            return Acceptance::Throttled;
        }
        if self.status != 503 && code != Some(Code::UNAVAILABLE) {
            return Acceptance::Accepted;
        }
        if self.has_no_permits() { Acceptance::Throttled } else { Acceptance::Unavailable }
    }

    /// Returns whether the server states that it did not process the request: with a 429, a 529, a status of the
    /// dialect, or another throttle that reports a quota without permits. A 403, 418, 420 or 509 alone may have another
    /// meaning.
    ///
    /// The status 503 is no such statement, because a server may send it after it started to process the request.
    pub(crate) fn is_rejected(&self) -> bool {
        match &self.signal {
            Some(signal) => signal.not_processed && self.status.as_u16() >= 400,
            None => {
                let grpc = self.has_headers.then(|| grpc::is_rejected(self.headers)).flatten();
                grpc.unwrap_or_else(|| {
                    let is_throttle = matches!(self.status.as_u16(), 429 | 529);
                    let is_stated = is_throttle || self.dialect.throttles_with(self.status);
                    is_stated || self.is_rejecting() && self.has_no_permits()
                })
            }
        }
    }

    /// Returns whether another attempt fails until somebody changes something.
    #[inline]
    pub(crate) fn is_permanent(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| signal.is_permanent)
    }

    /// Returns whether the server rejects requests because there are too many. A 503 may have another cause.
    pub(crate) fn throttle(&self) -> Throttle {
        match &self.signal {
            Some(signal) if signal.is_permanent => Throttle::Permanent,
            Some(signal) if signal.is_throttled => Throttle::Temporary,
            Some(_) => Throttle::No,
            None if self.is_rejecting() => Throttle::Temporary,
            None => Throttle::No,
        }
    }

    /// Returns whether the response to a gRPC call is a throttle for a reason other than its gRPC status: a signal, or
    /// without a `grpc-status` an HTTP status such as 529.
    pub(crate) fn is_throttled_beside_grpc(&self) -> bool {
        match &self.signal {
            Some(signal) => signal.is_throttled,
            // A 429 has a gRPC status.
            None => {
                let status = self.status;
                status != 429
                    && is_throttle_status(self.dialect, status)
                    && Code::in_head(self.headers).is_none()
            }
        }
    }

    /// Returns which limits the response concerns, if the server states it. Returns `None` for an accepted response.
    ///
    /// Without a statement, a throttled response concerns the resource or bucket whose quota is empty. GitHub throttles
    /// an account with the headers of a resource that has remaining permits. An unknown statement may mean the account,
    /// so the result is `None`.
    pub(crate) fn scope(&self) -> Option<Scope> {
        if !self.has_limits() || self.acceptance() == Acceptance::Accepted {
            return None;
        }
        if let Some(signal) = &self.signal {
            return signal.scope;
        }
        let stated = SCOPES.iter().find_map(|(name, known)| Some((self.headers.get(name)?, known)));
        if let Some((value, known)) = stated {
            let value = value.to_str().unwrap_or_default();
            let fits = |known: &str| value == known || known.ends_with('-') && value.starts_with(known);
            return known.iter().find_map(|(known, scope)| fits(known).then_some(*scope));
        }
        let mut empty = self.remaining().iter().filter(|quota| quota.left() == 0).peekable();
        empty.peek()?;
        empty.all(Remaining::is_of_resource).then_some(Scope::Endpoint)
    }

    /// Returns the delay for all requests: that of a throttled response.
    #[inline]
    pub(crate) fn pause(&self) -> Option<Duration> {
        if !self.has_limits() || self.acceptance() == Acceptance::Accepted {
            return None;
        }
        *self.pause.get_or_init(|| self.stated_delay().filter(|delay| !delay.is_zero()))
    }

    fn retry_after(&self) -> Option<Duration> {
        retry_after(self.headers, self.dialect.delays(), self.wall)
    }

    /// Returns the delay that the server states: that of the signal, or the longer of [`retry_after`] and a failed gRPC
    /// call's [delay](grpc::requested_delay).
    fn stated_delay(&self) -> Option<Duration> {
        let of_signal = self.signal.as_ref().and_then(|signal| signal.delay);
        of_signal.or_else(|| self.retry_after().max(grpc::requested_delay(self.headers)))
    }

    /// Returns the delay that the server requested, or the delay that its remaining permits imply.
    ///
    /// Returns the delay that the server states if it states one above zero. Otherwise, a throttled response without
    /// remaining permits implies a delay until permits become available. Of several quotas, the longest delay is used.
    /// Returns `None` if the server requests no delay, or if the delay has passed.
    pub(crate) fn requested_delay(&self) -> Option<Duration> {
        if !self.has_limits() {
            return None;
        }
        let delay = self.stated_delay().filter(|delay| !delay.is_zero()).or_else(|| {
            let is_accepted = self.acceptance() == Acceptance::Accepted;
            let remaining = if is_accepted { &[] } else { self.remaining() };
            let empty = remaining.iter().filter(|remaining| remaining.left() == 0);
            empty.map(|remaining| remaining.reset_after()).max()
        });
        delay.filter(|delay| !delay.is_zero())
    }

    /// Returns the remaining permits that the headers and the signal report.
    pub(crate) fn remaining(&self) -> &[Remaining] {
        let of_signal = self.signal.as_ref().and_then(|signal| signal.remaining);
        if !self.has_headers && of_signal.is_none() {
            return &[];
        }
        self.remaining.get_or_init(|| {
            let mut list = rate_limit::remaining(self.headers, self.dialect.quotas(), self.wall);
            // A quota that the server does not enforce yet cannot be the cause of this error.
            let is_other_error =
                self.status.as_u16() >= 400 && !is_throttle_status(self.dialect, self.status);
            list.retain(|quota| !(is_other_error && quota.is_beta()));
            if let Some((left, reset_after)) = of_signal {
                let is_of_resource =
                    self.signal.as_ref().is_some_and(|signal| signal.scope == Some(Scope::Endpoint));
                rate_limit::add_signal(&mut list, left, reset_after, is_of_resource);
            }
            list
        })
    }

    fn has_no_permits(&self) -> bool {
        self.remaining().iter().any(|remaining| remaining.left() == 0)
    }
}
