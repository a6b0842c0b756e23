//! Implements [`PermitIssuer`] for the queue, which determines whether its permits have expired and receives their
//! outcomes.

use super::{Queue, fast_path::BUSY, sync::Ordering};
use crate::limit::{
    algorithm::Algorithm,
    permit::{Permit, PermitIssuer, ResponseInfo},
};

impl<A: Algorithm> PermitIssuer for Queue<A> {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.locked(|list, _| {
            let now = self.fast.clock.now();
            let held = now.saturating_sub(self.fast.clock.since_origin(permit.granted_at()));
            self.is_expired_in(list, held, now)
        })
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) {
        // Releases the permits before it applies the response, because the server has already subtracted this request
        // from the remaining permits that it reports.
        self.fast.release(permit.cost());
        let obeys_remaining = self.fast.obeys_remaining(response);
        if response.requested_pause().is_none() && !obeys_remaining {
            return;
        }
        self.locked(|list, wakes| {
            // Makes every later request take the lock. Permits that were granted earlier without the lock are counted
            // as in flight.
            self.fast.tally().fetch_or(BUSY, Ordering::AcqRel);
            list.flags |= BUSY;
            let now = self.fast.clock.now();
            let uncounted = self.fast.in_flight().saturating_add(list.unconfirmed.permits(now));
            if list.server.apply(response, obeys_remaining, now, uncounted) {
                list.apply_server(&self.fast, wakes);
            }
        });
    }

    fn dropped(&self, permit: &Permit<'_>) {
        if permit.sent_at().is_some() {
            let permits = u64::from(permit.cost().get());
            self.locked(|list, _| list.unconfirmed.add(permits, self.fast.clock.now()));
        }
        self.fast.release(permit.cost());
    }
}
