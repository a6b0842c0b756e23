use super::{feedback::ResponseInfo, permit::Permit, snapshot::Effect};
use crate::{clock::Instant, policy::Amounts};

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

    /// Called each time the amounts of the request change. `actual` replaces `charged`. The first `charged` is the estimate
    /// of [`with_amounts`](Permit::with_amounts). The permit was granted at `granted_at`. Does nothing by default.
    fn settled(&self, _granted_at: Instant, _charged: &Amounts, _actual: &Amounts) {}
}
