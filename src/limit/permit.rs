//! Permits, and the requests in flight that have left them.

use std::{fmt, num::NonZeroU32, sync::Arc};

use super::{
    core::Grant,
    feedback::ResponseInfo,
    limiter::{PermitIssuer, PermitRequest},
    settlement::Settlement,
    shell::{Shared, acquire::Acquire},
    snapshot::Effect,
};
use crate::{
    clock::{self, Instant},
    policy::{Amounts, Taken, adaptive::Acceptance},
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

    /// As [`complete`](Self::complete), but the request stays [in flight](super::LocalLimiter::with_max_in_flight)
    /// until the [`InFlight`] ends.
    pub fn complete_head(mut self, response: &ResponseInfo<'_>) -> InFlight<'a> {
        self.report(response);
        InFlight::new(self)
    }
}

impl Permit<'_> {
    /// Returns the [`LocalLimiter`](crate::limit::LocalLimiter) that issued the permit, and the time of the grant.
    #[inline]
    pub(super) fn local(&self) -> Option<(&Shared, u64)> {
        match &self.issuer {
            Issuer::Borrowed(limiter, at) => Some((limiter, *at)),
            Issuer::Shared(limiter, at) => Some((limiter, *at)),
            Issuer::Ended | Issuer::Custom(..) => None,
        }
    }

    /// Returns the issuer of a custom limiter.
    #[inline]
    pub(super) fn custom(&self) -> Option<&dyn PermitIssuer> {
        if let Issuer::Custom(issuer, _) = &self.issuer { issuer.as_deref() } else { None }
    }

    /// Ends the permit of a request whose response states no limit. Returns `false` if the response must still be
    /// reported.
    #[inline]
    pub(crate) fn end_ordinary(&mut self) -> bool {
        let is_ended = self.local().is_some_and(|(limiter, _)| limiter.release_ordinary(self.cost));
        if is_ended {
            self.issuer = Issuer::Ended;
        }
        is_ended
    }

    /// Reports the response, and returns what it changed.
    #[inline]
    pub(crate) fn report(&mut self, response: &ResponseInfo<'_>) -> Effect {
        self.is_reported = true;
        let reading = &response.reading;
        let is_accepted = || reading.acceptance() == Acceptance::Accepted && !reading.is_permanent();
        let taken = self.settlement.as_ref().map(|settlement| settlement.end(is_accepted()));
        match self.local() {
            Some((limiter, at)) => limiter.completed((self.cost, at), self.sent_at, response, taken),
            None => self.custom().map_or_else(Effect::default, |issuer| issuer.completed(self, response)),
        }
    }

    /// Reports the end of the permit without a response that concerns this limiter. The request stays in flight.
    pub(crate) fn report_unrelated(&mut self) {
        let (sent_at, taken) = (self.sent_at.take(), self.end_amounts());
        match self.local() {
            Some((limiter, at)) => limiter.dropped((self.cost, at), false, taken),
            None => self.custom().into_iter().for_each(|issuer| issuer.dropped(self)),
        }
        (self.sent_at, self.is_reported) = (sent_at, true);
    }

    /// Records that the request was not sent. Its amounts are available again.
    pub(crate) fn mark_unsent(&mut self) {
        self.sent_at = None;
        self.settlement.iter().for_each(|settlement| settlement.settle(Amounts::NONE));
    }

    /// Returns what the request takes. `None` if it takes no amounts.
    pub(crate) fn taken(&self) -> Option<Taken> {
        self.settlement.as_ref().map(Settlement::taken)
    }

    /// Records that the server has not accepted the request. Returns what the request takes.
    fn end_amounts(&self) -> Option<Taken> {
        self.settlement.as_ref().map(|settlement| settlement.end(false))
    }

    /// Returns whether the request takes amounts.
    #[inline]
    pub(crate) fn has_amounts(&self) -> bool {
        self.settlement.is_some()
    }

    /// Returns whether the limiter counts the requests in flight.
    #[inline]
    pub(crate) fn counts_in_flight(&self) -> bool {
        match self.local() {
            Some((limiter, _)) => limiter.limits_in_flight(),
            None => self.custom().is_some_and(|issuer| issuer.counts_in_flight()),
        }
    }

    /// Ends this expired permit, whose request stays in flight. Returns a future that waits for another permit of the
    /// same limiter, with the same cost and amounts. If a custom issuer does not [renew](PermitIssuer::renew) it,
    /// returns the request with this cost and these amounts.
    pub(super) fn renew(&mut self, request: PermitRequest) -> Result<Acquire, PermitRequest> {
        self.mark_unsent();
        self.report_unrelated();
        // The permit of a custom limiter may lack the amounts that the limiter has taken.
        let stated = *request.amounts();
        let granted = self.taken().map(|taken| taken.granted);
        let request = request.with_cost(self.cost).with_amounts(granted.unwrap_or(Amounts::NONE));
        match &self.issuer {
            Issuer::Shared(limiter, _) => Ok(Acquire::of(Arc::clone(limiter), request)),
            _ => {
                let renewed = self.custom().and_then(|issuer| issuer.renew(&request));
                renewed.ok_or_else(|| request.with_amounts(granted.unwrap_or(stated)))
            }
        }
    }

    /// Ends the `expired` permit of this request, which stays in flight.
    pub(crate) fn replace(&self, mut expired: Permit<'_>) {
        match (self.local(), expired.local()) {
            // Another limiter was selected this time. It does not count the request yet.
            (Some((own, _)), Some((other, _))) if !std::ptr::eq(own, other) => own.enter_flight(),
            _ => expired.issuer = Issuer::Ended,
        }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.has_amounts() && self.sent_at.is_none() && !self.is_reported {
            self.mark_unsent();
        }
        // The server may still process a request that was sent.
        let is_cancelled = self.sent_at.is_some();
        let taken = if self.is_reported { None } else { self.end_amounts() };
        if let Some((limiter, at)) = self.local() {
            match self.is_reported {
                true => limiter.end_in_flight(is_cancelled),
                false => limiter.ended((self.cost, at), is_cancelled, taken),
            }
        } else if let Some(issuer) = self.custom() {
            if !self.is_reported {
                issuer.dropped(self);
            }
            if issuer.counts_in_flight() {
                issuer.left_flight(is_cancelled);
            }
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

/// A request whose response head has arrived, and whose response body may not have ended. It counts as
/// [in flight](super::LocalLimiter::with_max_in_flight).
///
/// [`Permit::complete_head`](super::Permit::complete_head) returns it.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tower_outbound::limit::{LocalLimiter, ResponseInfo};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = LocalLimiter::without_quota().with_max_in_flight(1)?;
/// let mut permit = limiter.acquire().await?;
/// permit.mark_sent(tokio::time::Instant::now());
/// let in_flight = permit.complete_head(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
/// assert!(limiter.try_acquire().is_err());
/// // Read the body here.
/// in_flight.end();
/// assert!(limiter.try_acquire().is_ok());
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Dropping it counts the request as cancelled if the permit was [marked as sent](super::Permit::mark_sent): see
/// [`with_hold_after_cancel`](super::LocalLimiter::with_hold_after_cancel).
#[must_use = "the request is cancelled if this is dropped"]
pub struct InFlight<'a> {
    /// The reported permit. `None` if the limiter does not count requests in flight. Boxed, because most bodies have
    /// none.
    permit: Option<Box<Permit<'a>>>,
}

impl<'a> InFlight<'a> {
    /// Keeps the request of a reported permit in flight.
    #[inline]
    pub(super) fn new(permit: Permit<'a>) -> Self {
        Self { permit: permit.counts_in_flight().then(|| Box::new(permit)) }
    }

    /// Keeps the request of an expired permit in flight until it has another permit.
    pub(super) fn of_expired(mut permit: Permit<'a>) -> Self {
        permit.mark_unsent();
        permit.report_unrelated();
        Self::new(permit)
    }

    /// A request that is not counted.
    pub(super) const fn none() -> Self {
        Self { permit: None }
    }

    /// Ends the request after the end of its response body.
    pub fn end(self) {
        self.permit.into_iter().for_each(|permit| permit.release());
    }

    pub(super) fn is_counted(&self) -> bool {
        self.permit.is_some()
    }

    /// Ends this value but not the request, because the request has another permit.
    pub(super) fn hand_over(self, to: &Permit<'_>) {
        self.permit.into_iter().for_each(|expired| to.replace(*expired));
    }
}

impl fmt::Debug for InFlight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("is_counted", &self.is_counted()).finish_non_exhaustive()
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
