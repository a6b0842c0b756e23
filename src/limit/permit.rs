use std::{cell::OnceCell, fmt, num::NonZeroU32, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use super::{queue::fast_path::FastPath, snapshot::Learned};
use crate::{
    clock::{self, Instant},
    policy::{self, adaptive::Acceptance, grpc::Code, rate_limit::Remaining},
};

/// The right to send one request, granted by a limiter.
///
/// - Call [`mark_sent`](Self::mark_sent) before the request is sent, and [`complete`](Self::complete) with its
///   response.
/// - Dropping a permit never returns it to the quota. A permit that is dropped before `mark_sent` is wasted. If it is
///   dropped after `mark_sent`, its request is *unconfirmed*: the request may still reach the server. For 10 s, it
///   therefore counts against the remaining permits that the server reports.
/// - Code that uses a limiter only for its own rate, without server feedback, can drop its permits.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tower_outbound::{Quota, limit::{ResponseInfo, TokenBucket}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let bucket = TokenBucket::new(Quota::per_minute(100)?);
///
/// let mut permit = bucket.acquire().await?;
/// permit.mark_sent(tokio::time::Instant::now());
/// // Send the request here.
/// let (status, headers) = (StatusCode::OK, HeaderMap::new());
/// permit.complete(&ResponseInfo::new(status, &headers));
/// # Ok(())
/// # }
/// ```
pub struct Permit<'a> {
    grant: Grant<'a>,
    cost: NonZeroU32,
    sent_at: Option<Instant>,
}

/// The issuer of a permit, and the time of the grant.
pub(super) enum Grant<'a> {
    /// The permit reports its outcome to no limiter, or has already reported it.
    Detached(Instant),
    /// The time is in nanoseconds of the fast path's clock, because most permits that borrow their limiter never need an
    /// `Instant`.
    Borrowed(&'a dyn PermitIssuer, &'a FastPath, u64),
    Shared(Arc<dyn PermitIssuer>, Instant),
}

/// Receives the outcome of each permit of a limiter, and determines whether a permit has expired.
pub trait PermitIssuer: Send + Sync {
    /// Returns whether `permit` can no longer be used. The layer calls this method if the inner service was not ready
    /// right after the grant, or if the request then waited for a connection of this crate's `transport`.
    ///
    /// By default, a permit expires as soon as the clock advances after the grant, because a request sent later could
    /// be in another window.
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        permit.is_older_than_now()
    }

    /// Called when the request of `permit` received a response. Returns the learned rate if it has changed, which the
    /// rate-limit layer logs. Does nothing and returns `None` by default.
    fn completed(&self, _permit: &Permit<'_>, _response: &ResponseInfo<'_>) -> Option<Learned> {
        None
    }

    /// Called when the request of `permit` ended without a response, or with a response that does not concern this
    /// limiter. The request may still reach the server if [`sent_at`](Permit::sent_at) is `Some`. Does nothing by
    /// default.
    fn dropped(&self, _permit: &Permit<'_>) {}
}

impl<'a> Permit<'a> {
    /// Creates a permit of `cost` for a custom limiter, granted at the current time.
    pub fn new(cost: NonZeroU32) -> Self {
        Self::issued(Grant::Detached(clock::now()), cost)
    }

    /// Lets `issuer` decide whether the permit has expired, and reports the permit's outcome to it.
    pub fn with_issuer(mut self, issuer: Arc<dyn PermitIssuer>) -> Self {
        self.grant = Grant::Shared(issuer, self.granted_at());
        self
    }

    #[inline]
    pub(super) fn issued(grant: Grant<'a>, cost: NonZeroU32) -> Self {
        Self { grant, cost, sent_at: None }
    }

    /// Returns the cost of the request: how many permits of the quota it takes.
    pub fn cost(&self) -> NonZeroU32 {
        self.cost
    }

    /// Returns when the limiter granted the permit.
    pub fn granted_at(&self) -> Instant {
        match &self.grant {
            Grant::Detached(at) | Grant::Shared(_, at) => *at,
            Grant::Borrowed(_, fast, at) => fast.stamp(*at),
        }
    }

    /// Returns when the request was sent. `None` before [`mark_sent`](Self::mark_sent).
    pub fn sent_at(&self) -> Option<Instant> {
        self.sent_at
    }

    /// Returns whether the permit can no longer be used, because a request sent now could exceed the quota or ignore a
    /// pause. Drop an expired permit and acquire another one.
    pub fn is_expired(&self) -> bool {
        self.grant.issuer().map_or_else(|| self.is_older_than_now(), |issuer| issuer.is_expired(self))
    }

    fn is_older_than_now(&self) -> bool {
        !self.granted_at().elapsed().is_zero()
    }

    /// Records `at` as the time at which the request is sent.
    pub fn mark_sent(&mut self, at: Instant) {
        self.sent_at = Some(at);
    }

    /// Reports the response to the limiter. Call this for every response, including those without rate-limit headers.
    #[inline]
    pub fn complete(mut self, response: &ResponseInfo<'_>) {
        // Without rate-limit headers, a limiter that does not learn only counts the release.
        if !response.has_limits && self.release_without_lock() {
            // Dropping the permit would release it again.
            std::mem::forget(self);
        } else {
            self.report(response);
        }
    }

    /// Counts the permit as released, without a dynamic call. Returns `false` if the limiter needs its lock for that.
    #[inline]
    fn release_without_lock(&self) -> bool {
        matches!(&self.grant, Grant::Borrowed(_, fast, _) if fast.release_without_lock(self.cost))
    }

    /// Reports the response, and returns the learned rate if it has changed.
    #[inline]
    pub(super) fn report(&mut self, response: &ResponseInfo<'_>) -> Option<Learned> {
        let granted_at = self.granted_at();
        let grant = std::mem::replace(&mut self.grant, Grant::Detached(granted_at));
        grant.issuer()?.completed(self, response)
    }

    /// Ends the request of this permit without reporting a response. Use this method if the response does not concern
    /// this limiter.
    pub fn release(mut self) {
        self.sent_at = None;
    }
}

impl Grant<'_> {
    #[inline]
    fn issuer(&self) -> Option<&dyn PermitIssuer> {
        match self {
            Self::Detached(_) => None,
            Self::Borrowed(issuer, ..) => Some(*issuer),
            Self::Shared(issuer, _) => Some(&**issuer),
        }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.sent_at.is_none() && self.release_without_lock() {
            return;
        }
        if let Some(issuer) = self.grant.issuer() {
            issuer.dropped(self);
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("cost", &self.cost)
            .field("granted_at", &self.granted_at())
            .field("sent_at", &self.sent_at)
            .finish_non_exhaustive()
    }
}

/// The parts of a response that a limiter reads: status, headers and time of arrival.
#[derive(Clone)]
pub struct ResponseInfo<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    received_at: Option<Instant>,
    /// Whether a header may concern the rate limit.
    has_limits: bool,
    is_throttled: bool,
    pause: Option<Duration>,
    /// Parsed when it is first read.
    remaining: OnceCell<Vec<Remaining>>,
}

impl<'a> ResponseInfo<'a> {
    /// Reads the rate-limit headers of a response that has just arrived.
    ///
    /// - A requested delay pauses the limiter if the server is rejecting all requests: a 429, 503 or 529 with
    ///   `Retry-After`, or gRPC's pushback. With another status, such as a redirect, the delay concerns only one
    ///   resource.
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
            has_limits: policy::feedback::has_limits(headers),
            is_throttled: false,
            pause: None,
            remaining: OnceCell::new(),
        };
        // One scan over the header names suffices for most responses, because most have no rate-limit header.
        if info.has_limits {
            info.is_throttled = policy::feedback::is_throttled(status, headers);
            let requested =
                info.is_throttled.then(|| policy::feedback::pause(headers, clock::wall)).flatten();
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

    /// Returns `true` if the response has both rate-limit headers and a status with which the server rejects all
    /// requests.
    pub(crate) fn is_throttled(&self) -> bool {
        self.is_throttled
    }

    /// Returns whether the server's rate limit accepted the request.
    pub(crate) fn acceptance(&self) -> Acceptance {
        let code = if self.has_limits { Code::in_head(self.headers) } else { None };
        let has_no_permits = || self.remaining().iter().any(|remaining| remaining.left() == 0);
        policy::feedback::acceptance(self.status, code, has_no_permits)
    }

    /// Returns the remaining permits that the server reported for each of its quotas. The first call parses the headers.
    pub fn remaining(&self) -> &[Remaining] {
        match self.has_limits {
            true => self.remaining.get_or_init(|| policy::rate_limit::remaining(self.headers, clock::wall)),
            false => &[],
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An issuer with the default implementation of `is_expired`.
    struct DefaultExpiry;

    impl PermitIssuer for DefaultExpiry {}

    #[tokio::test(start_paused = true)]
    async fn custom_permit_expires_when_time_advances() {
        let permit = Permit::new(NonZeroU32::MIN);
        let issued = Permit::new(NonZeroU32::MIN).with_issuer(Arc::new(DefaultExpiry));
        assert!(!permit.is_expired() && !issued.is_expired());
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(permit.is_expired() && issued.is_expired());
    }
}
