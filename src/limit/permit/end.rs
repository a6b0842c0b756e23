//! The end of a permit.

use super::{Issuer, Permit, PermitIssuer};
use crate::{
    limit::{feedback::ResponseInfo, settlement::Settlement, shell::Shared, snapshot::Effect},
    policy::{Amounts, Taken, adaptive::Acceptance},
};

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
