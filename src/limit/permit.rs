mod end;

use std::{fmt, num::NonZeroU32, sync::Arc};

use super::{core::Grant, feedback::ResponseInfo, settlement::Settlement, shell::Shared, snapshot::Effect};
use crate::{
    clock::{self, Instant},
    policy::{Amounts, Taken},
};

/// The right to send one request, granted by a limiter.
///
/// - Call [`mark_sent`](Self::mark_sent) before the request is sent, and [`complete`](Self::complete) with its
///   response.
/// - Dropping a permit never returns it to the quota. A permit that is dropped before `mark_sent` is wasted. If it is
///   dropped after `mark_sent`, its request is *unconfirmed*: the request may still reach the server. For 10 s, it
///   therefore counts against the remaining permits that the server reports.
/// - Code that uses a limiter only for its own rate, without server feedback, can drop its permits.
/// - [`Amounts`] are different: dropping a permit before `mark_sent` returns them, because its request was not sent.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tower_outbound::{Quota, limit::{ResponseInfo, LocalLimiter}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let bucket = LocalLimiter::token_bucket(Quota::per_minute(100)?);
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
    issuer: Issuer<'a>,
    cost: NonZeroU32,
    /// Whether the response was reported. Its request may still be in flight.
    is_reported: bool,
    sent_at: Option<Instant>,
    /// The amounts. `None` if the request takes none.
    settlement: Option<Settlement>,
}

/// The issuer of a permit, and the time of the grant. The times of a [`LocalLimiter`](super::LocalLimiter) are those of
/// its clock.
enum Issuer<'a> {
    /// The permit has reported its outcome, and its request is not in flight.
    Ended,
    Borrowed(&'a Shared, u64),
    Shared(Arc<Shared>, u64),
    /// The issuer of a custom limiter. `None` if the permit reports its outcome to no limiter.
    Custom(Option<Arc<dyn PermitIssuer>>, Instant),
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

    /// Called when the request of `permit` received a response. Returns what the response changed, which the rate-limit
    /// layer logs. Does nothing and returns no change by default.
    fn completed(&self, _permit: &Permit<'_>, _response: &ResponseInfo<'_>) -> Effect {
        Effect::default()
    }

    /// Called when the request of `permit` ended without a response, or with a response that does not concern this
    /// limiter. The request may still reach the server if [`sent_at`](Permit::sent_at) is `Some`. Does nothing by
    /// default.
    fn dropped(&self, _permit: &Permit<'_>) {}

    /// Returns whether the issuer counts requests in flight, so that [`left_flight`](Self::left_flight) is called.
    /// `false` by default.
    ///
    /// An issuer that passes the outcomes to a [`LocalLimiter`](super::LocalLimiter) must pass both methods if that
    /// limiter [limits the requests in flight](super::LocalLimiter::with_max_in_flight).
    fn counts_in_flight(&self) -> bool {
        false
    }

    /// Called once for each permit if [`counts_in_flight`](Self::counts_in_flight) returns `true`, after
    /// [`completed`](Self::completed) or [`dropped`](Self::dropped), when its request is no longer in flight.
    /// `is_cancelled` is `true` if the request was sent and ended before its response did, so that the server may still
    /// process it. Does nothing by default.
    fn left_flight(&self, _is_cancelled: bool) {}

    /// Called each time the amounts of the request change. `actual` replaces the amounts
    /// [charged](Taken::charged) before. The permit was granted at `granted_at`. Does nothing by default.
    fn settled(&self, _granted_at: Instant, _taken: &Taken, _actual: &Amounts) {}
}

impl<'a> Permit<'a> {
    /// Creates a permit of `cost` for a custom limiter, granted at the current time.
    pub fn new(cost: NonZeroU32) -> Self {
        Self::of(Issuer::Custom(None, clock::now()), cost, None)
    }

    #[inline]
    fn of(issuer: Issuer<'a>, cost: NonZeroU32, settlement: Option<Settlement>) -> Self {
        Self { issuer, cost, is_reported: false, sent_at: None, settlement }
    }

    /// Lets `issuer` decide whether the permit has expired, and reports the permit's outcome to it. The earlier issuer
    /// learns nothing of the permit, so the new one must pass every call to it, also
    /// [`left_flight`](PermitIssuer::left_flight). An existing [`settlement`](Self::settlement) still reports to the
    /// earlier issuer, unless [`with_amounts`](Self::with_amounts) replaces it.
    pub fn with_issuer(mut self, issuer: Arc<dyn PermitIssuer>) -> Self {
        self.issuer = Issuer::Custom(Some(issuer), self.granted_at());
        self
    }

    #[inline]
    pub(super) fn borrowed(limiter: &'a Shared, cost: NonZeroU32, at: u64) -> Self {
        Self::of(Issuer::Borrowed(limiter, at), cost, None)
    }

    #[inline]
    pub(super) fn shared(limiter: Arc<Shared>, grant: Grant, amounts: &Amounts) -> Self {
        let Grant { at, cost, taken_at } = grant;
        let settlement =
            if amounts.is_empty() { None } else { Some(Settlement::of_shared(&limiter, taken_at, *amounts)) };
        Self::of(Issuer::Shared(limiter, at), cost, settlement)
    }

    /// Sets the amounts that a custom limiter has taken for the request. Call it after
    /// [`with_issuer`](Self::with_issuer), whose [`settled`](PermitIssuer::settled) receives the actual amounts.
    pub fn with_amounts(mut self, amounts: Amounts) -> Self {
        self.settlement = if amounts.is_empty() { None } else { self.new_settlement(amounts) };
        self
    }

    fn new_settlement(&self, amounts: Amounts) -> Option<Settlement> {
        match &self.issuer {
            // A limiter that is not shared learns nothing after the permit.
            Issuer::Ended | Issuer::Borrowed(..) => None,
            Issuer::Shared(limiter, at) => Some(Settlement::of_shared(limiter, *at, amounts)),
            Issuer::Custom(issuer, at) => {
                let (issuer, at) = (issuer.clone()?, *at);
                Some(Settlement::new(amounts, move |taken, actual| issuer.settled(at, taken, actual)))
            }
        }
    }

    /// Returns the handle that reports the actual amounts. The handle also works after the permit has ended. Returns
    /// `None` for a permit of [`try_acquire`](super::LocalLimiter::try_acquire) or without an issuer.
    pub fn settlement(&mut self) -> Option<&Settlement> {
        if self.settlement.is_none() {
            self.settlement = self.new_settlement(Amounts::NONE);
        }
        self.settlement.as_ref()
    }

    /// Returns the cost of the request: how many permits of the quota it takes.
    pub fn cost(&self) -> NonZeroU32 {
        self.cost
    }

    /// Returns when the limiter granted the permit.
    pub fn granted_at(&self) -> Instant {
        match &self.issuer {
            Issuer::Ended => clock::now(),
            Issuer::Custom(_, at) => *at,
            Issuer::Borrowed(limiter, at) => limiter.setup.clock.stamp(*at),
            Issuer::Shared(limiter, at) => limiter.setup.clock.stamp(*at),
        }
    }

    /// Returns when the request was sent. `None` before [`mark_sent`](Self::mark_sent).
    pub fn sent_at(&self) -> Option<Instant> {
        self.sent_at
    }

    /// Returns whether the permit can no longer be used, because a request sent now could exceed the quota or ignore a
    /// pause. Drop an expired permit and acquire another one.
    pub fn is_expired(&self) -> bool {
        match (self.local(), self.custom()) {
            (Some((limiter, at)), _) => limiter.is_expired(at),
            (None, Some(issuer)) => issuer.is_expired(self),
            (None, None) => self.is_older_than_now(),
        }
    }

    pub(super) fn is_older_than_now(&self) -> bool {
        !self.granted_at().elapsed().is_zero()
    }

    /// Records `at` as the time at which the request is sent.
    pub fn mark_sent(&mut self, at: Instant) {
        self.sent_at = Some(at);
    }

    /// Reports the response to the limiter. Call this for every response, including those without rate-limit headers.
    /// The request is then no longer [in flight](super::LocalLimiter::with_max_in_flight).
    #[inline]
    pub fn complete(mut self, response: &ResponseInfo<'_>) {
        if self.settlement.is_none() && !response.reading.has_limits() && self.end_ordinary() {
            // Skips `drop`, because the ended permit owns nothing. This saves 13 % of the instructions of a grant and
            // its completion (callgrind).
            return std::mem::forget(self);
        }
        self.report(response);
        self.sent_at = None;
    }

    /// Ends the request of this permit without reporting a response. Use this method if the response does not concern
    /// this limiter.
    pub fn release(mut self) {
        if !self.is_reported {
            self.report_unrelated();
        }
        self.sent_at = None;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
