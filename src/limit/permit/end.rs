//! The end of a permit.

use std::sync::Arc;

use super::{Issuer, Permit};
use crate::{
    limit::{feedback::ResponseInfo, shell::Shared, snapshot::Effect},
    policy::Amounts,
};

impl Permit<'_> {
    /// Ends the permit of a request whose response states no limit. Returns `false` if the response must still be
    /// reported.
    #[inline]
    pub(crate) fn end_ordinary(&mut self) -> bool {
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
    pub(crate) fn report(&mut self, response: &ResponseInfo<'_>) -> Effect {
        self.is_reported = true;
        match &self.issuer {
            Issuer::None(_) | Issuer::Ended => Effect::default(),
            Issuer::Borrowed(limiter, at) => limiter.completed((self.cost, *at), self.sent_at, response),
            Issuer::Shared(limiter, at) => limiter.completed((self.cost, *at), self.sent_at, response),
            Issuer::Custom(issuer, _) => issuer.completed(self, response),
        }
    }

    /// Ends the request of this permit, which was not sent. Its amounts are available again.
    pub(crate) fn release_unsent(mut self) {
        self.return_amounts();
        self.release();
    }

    /// Returns the amounts of a request that was not sent.
    pub(crate) fn return_amounts(&mut self) {
        self.settlement.take().into_iter().for_each(|settlement| settlement.settle(Amounts::NONE));
    }

    /// Returns whether the request takes amounts.
    #[inline]
    pub(crate) fn has_amounts(&self) -> bool {
        self.settlement.is_some()
    }

    /// Ends the `expired` permit of this request, which stays in flight.
    pub(crate) fn replace(&self, mut expired: Permit<'_>) {
        if let (Issuer::Shared(own, _), Issuer::Shared(other, _)) = (&self.issuer, &expired.issuer) {
            if !Arc::ptr_eq(own, other) {
                // Another limiter was selected this time. It does not count the request yet.
                return own.enter_flight();
            }
        }
        expired.issuer = Issuer::Ended;
    }

    /// Reports that the response does not concern this limiter. The request stays in flight.
    pub(crate) fn report_unrelated(&mut self) {
        let sent_at = self.sent_at.take();
        self.report_unsent();
        self.sent_at = sent_at;
    }

    /// Reports that the request was not sent. It stays in flight.
    pub(crate) fn report_unsent(&mut self) {
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
    pub(crate) fn counts_in_flight(&self) -> bool {
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
