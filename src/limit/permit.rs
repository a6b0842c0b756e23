use std::{fmt, num::NonZeroU32, sync::Arc};

use super::{
    core::Grant, feedback::ResponseInfo, permit_issuer::PermitIssuer, settlement::Settlement, shell::Shared,
    snapshot::Effect,
};
use crate::{
    clock::{self, Instant},
    policy::Amounts,
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
    /// The permit reports its outcome to no limiter.
    None(Instant),
    /// The permit has reported its outcome, and its request is not in flight.
    Ended,
    Borrowed(&'a Shared, u64),
    Shared(Arc<Shared>, u64),
    Custom(Arc<dyn PermitIssuer>, Instant),
}

impl<'a> Permit<'a> {
    /// Creates a permit of `cost` for a custom limiter, granted at the current time.
    pub fn new(cost: NonZeroU32) -> Self {
        Self { issuer: Issuer::None(clock::now()), cost, is_reported: false, sent_at: None, settlement: None }
    }

    /// Lets `issuer` decide whether the permit has expired, and reports the permit's outcome to it. The earlier issuer
    /// learns nothing of the permit, so the new one must pass every call to it, also
    /// [`left_flight`](PermitIssuer::left_flight). An existing [`settlement`](Self::settlement) still reports to the earlier
    /// issuer, unless [`with_amounts`](Self::with_amounts) replaces it.
    pub fn with_issuer(mut self, issuer: Arc<dyn PermitIssuer>) -> Self {
        self.issuer = Issuer::Custom(issuer, self.granted_at());
        self
    }

    #[inline]
    pub(super) fn borrowed(limiter: &'a Shared, cost: NonZeroU32, at: u64) -> Self {
        Self {
            issuer: Issuer::Borrowed(limiter, at),
            cost,
            is_reported: false,
            sent_at: None,
            settlement: None,
        }
    }

    #[inline]
    pub(super) fn shared(limiter: Arc<Shared>, grant: Grant, amounts: &Amounts) -> Self {
        let Grant { at, cost, taken_at } = grant;
        let settlement =
            if amounts.is_empty() { None } else { Some(Settlement::of_shared(&limiter, taken_at, *amounts)) };
        Self { issuer: Issuer::Shared(limiter, at), cost, is_reported: false, sent_at: None, settlement }
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
            Issuer::None(_) | Issuer::Ended | Issuer::Borrowed(..) => None,
            Issuer::Shared(limiter, at) => Some(Settlement::of_shared(limiter, *at, amounts)),
            Issuer::Custom(issuer, at) => Some(Settlement::of_issuer(Arc::clone(issuer), *at, amounts)),
        }
    }

    /// Returns the handle that reports the actual amounts. The handle also works after the permit has ended. Returns `None`
    /// for a permit of [`try_acquire`](super::LocalLimiter::try_acquire) or without an issuer.
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
            Issuer::None(at) | Issuer::Custom(_, at) => *at,
            Issuer::Ended => clock::now(),
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
        match &self.issuer {
            Issuer::None(_) | Issuer::Ended => self.is_older_than_now(),
            Issuer::Borrowed(limiter, at) => limiter.is_expired(*at),
            Issuer::Shared(limiter, at) => limiter.is_expired(*at),
            Issuer::Custom(issuer, _) => issuer.is_expired(self),
        }
    }

    pub(super) fn is_older_than_now(&self) -> bool {
        !self.granted_at().elapsed().is_zero()
    }

    /// Records `at` as the time at which the request is sent.
    pub fn mark_sent(&mut self, at: Instant) {
        self.sent_at = Some(at);
    }

    /// Reports the response to the limiter. Call this for every response, including those without rate-limit headers. The
    /// request is then no longer [in flight](super::LocalLimiter::with_max_in_flight).
    #[inline]
    pub fn complete(mut self, response: &ResponseInfo<'_>) {
        if self.settlement.is_none() && !response.has_limits() && self.end_ordinary() {
            // Skips `drop`, because the ended permit owns nothing. A grant with its completion then takes 12 % fewer
            // instructions (callgrind).
            return std::mem::forget(self);
        }
        self.report(response);
        self.sent_at = None;
    }

    /// Ends the permit of a request whose response states no limit. Returns `false` if the response must still be
    /// reported.
    #[inline]
    pub(super) fn end_ordinary(&mut self) -> bool {
        let is_ended = match &self.issuer {
            Issuer::Borrowed(limiter, _) => limiter.release_ordinary(self.cost),
            Issuer::Shared(limiter, _) => limiter.release_ordinary(self.cost),
            Issuer::None(_) | Issuer::Ended | Issuer::Custom(..) => false,
        };
        if is_ended {
            self.issuer = Issuer::Ended;
        }
        is_ended
    }

    /// Reports the response, and returns what it changed.
    #[inline]
    pub(super) fn report(&mut self, response: &ResponseInfo<'_>) -> Effect {
        self.is_reported = true;
        match &self.issuer {
            Issuer::None(_) | Issuer::Ended => Effect::default(),
            Issuer::Borrowed(limiter, at) => limiter.completed((self.cost, *at), self.sent_at, response),
            Issuer::Shared(limiter, at) => limiter.completed((self.cost, *at), self.sent_at, response),
            Issuer::Custom(issuer, _) => issuer.completed(self, response),
        }
    }

    /// Ends the request of this permit, which was not sent. Its amounts are available again.
    pub(super) fn release_unsent(mut self) {
        self.return_amounts();
        self.release();
    }

    /// Returns the amounts of a request that was not sent.
    pub(super) fn return_amounts(&mut self) {
        self.settlement.take().into_iter().for_each(|settlement| settlement.settle(Amounts::NONE));
    }

    /// Returns whether the request takes amounts.
    #[inline]
    pub(super) fn has_amounts(&self) -> bool {
        self.settlement.is_some()
    }

    /// Ends the request of this permit without reporting a response. Use this method if the response does not concern
    /// this limiter.
    pub fn release(mut self) {
        self.settlement = None;
        self.sent_at = None;
    }

    /// Ends the `expired` permit of this request, which stays in flight.
    pub(super) fn replace(&self, mut expired: Permit<'_>) {
        if let (Issuer::Shared(own, _), Issuer::Shared(other, _)) = (&self.issuer, &expired.issuer) {
            if !Arc::ptr_eq(own, other) {
                // Another limiter was selected this time. It does not count the request yet.
                return own.enter_flight();
            }
        }
        expired.issuer = Issuer::Ended;
    }

    /// Reports that the response does not concern this limiter. The request stays in flight.
    pub(super) fn report_unrelated(&mut self) {
        let sent_at = self.sent_at.take();
        self.report_unsent();
        self.sent_at = sent_at;
    }

    /// Reports that the request was not sent. It stays in flight.
    pub(super) fn report_unsent(&mut self) {
        self.sent_at = None;
        match &self.issuer {
            Issuer::None(_) | Issuer::Ended => {}
            Issuer::Borrowed(limiter, at) => limiter.dropped((self.cost, *at), false),
            Issuer::Shared(limiter, at) => limiter.dropped((self.cost, *at), false),
            Issuer::Custom(issuer, _) => issuer.dropped(self),
        }
        self.is_reported = true;
    }

    /// Returns whether the limiter counts the requests in flight.
    #[inline]
    pub(super) fn counts_in_flight(&self) -> bool {
        match &self.issuer {
            Issuer::None(_) | Issuer::Ended => false,
            Issuer::Borrowed(limiter, _) => limiter.limits_in_flight(),
            Issuer::Shared(limiter, _) => limiter.limits_in_flight(),
            Issuer::Custom(issuer, _) => issuer.counts_in_flight(),
        }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Issuer::Ended = self.issuer {
            return;
        }
        if self.settlement.is_some() && self.sent_at.is_none() && !self.is_reported {
            self.return_amounts();
        }
        // The server may still process a request that was sent.
        let is_cancelled = self.sent_at.is_some();
        let end = |limiter: &Shared, at| match self.is_reported {
            true => limiter.end_in_flight(is_cancelled),
            false => limiter.ended((self.cost, at), is_cancelled),
        };
        match &self.issuer {
            Issuer::None(_) | Issuer::Ended => {}
            Issuer::Borrowed(limiter, at) => end(limiter, *at),
            Issuer::Shared(limiter, at) => end(limiter, *at),
            Issuer::Custom(issuer, _) => {
                if !self.is_reported {
                    issuer.dropped(self);
                }
                if issuer.counts_in_flight() {
                    issuer.left_flight(is_cancelled);
                }
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
