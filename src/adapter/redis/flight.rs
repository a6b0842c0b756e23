//! The requests in flight of this process, as the store counts them.

use std::{num::NonZeroU32, time::Duration};

use super::protocol::{FlightReport, Query, Reply};
use crate::{limit::LocalLimiter, policy::nanos};

/// While the limit of requests in flight is reached, the store is queried after an eighth of the time waited so far,
/// within these bounds. The upper bound is well below the time after which the script ends the turn of a process.
const SHORTEST_POLL: u64 = 10_000_000;
const LONGEST_POLL: u64 = 250_000_000;

/// The requests in flight of this process, as its limiter counts them.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    pub(super) requests: u32,
    /// How many further requests the store admits. `None` if the limit applies without a store.
    pub(super) admitted: Option<u32>,
    /// The number of waiters that are already in flight, because their permits have expired.
    pub(super) renewing: u32,
}

impl LocalLimiter {
    pub(super) fn flight(&self) -> Flight {
        self.locked(|core, now| Flight {
            requests: core.requests_in_flight(now).unwrap_or(0),
            admitted: core.in_flight.as_ref().and_then(|in_flight| in_flight.admitted),
            renewing: u32::try_from(core.renewing()).unwrap_or(u32::MAX),
        })
    }

    /// Replaces the limit of requests in flight, and the number of further requests that the store admits. Grants no
    /// permits to waiters. Returns the number of requests in flight.
    pub(super) fn admit(&self, max: NonZeroU32, further: Option<u32>) -> u32 {
        self.locked(|core, now| {
            core.end_held(now);
            if let Some(in_flight) = &mut core.in_flight {
                (in_flight.max, in_flight.admitted) = (max, further);
            }
            core.requests_in_flight(now).unwrap_or(0)
        })
    }
}

/// The requests in flight of this process as of the last reply of the store. Times are nanoseconds since the limiter
/// was created.
#[derive(Default)]
pub(super) struct Counted {
    /// The number of requests that the store counts for this process, including those that it has admitted.
    requests: u32,
    /// Since when the limit delays waiters. `None` if the process does not wait for a turn.
    full_since: Option<u64>,
    renew_at: u64,
    expires_at: u64,
}

impl Counted {
    /// Returns when the store must be queried because of the requests in flight. Returns 0, which means now, if the
    /// store counts a wrong number or reserves a turn that no waiter uses. Returns `None` if it counts no request.
    /// `usable` is the number of fetched permits that further requests will use.
    pub(super) fn report_at(&self, flight: &Flight, usable: u64, is_waiting: bool, now: u64) -> Option<u64> {
        let admitted = u64::from(flight.admitted.unwrap_or(0)).min(usable);
        let needed = admitted + u64::from(flight.requests);
        if needed == 0 && now >= self.expires_at {
            return None;
        }
        let is_wrong = u64::from(self.requests) != needed || self.full_since.is_some() && !is_waiting;
        if is_wrong { Some(0) } else { Some(self.renew_at).filter(|_| needed > 0) }
    }

    /// Creates the report of a query, except for the number of requests. The store decides at `decided_at` or earlier.
    pub(super) fn report(&self, id: u64, spare: i64, decided_at: u64) -> FlightReport {
        let is_counted = self.requests > 0 && decided_at < self.expires_at;
        FlightReport { id, requests: 0, spare, is_counted }
    }

    /// Records a reply. Returns the earliest time of the next query for a waiter.
    pub(super) fn replied(&mut self, query: &Query, reply: &Reply, expiry: Duration, now: u64) -> u64 {
        self.requests = query.flight.requests.saturating_add(reply.admitted);
        self.renew_at = query.now.saturating_add(nanos(expiry / 3));
        self.expires_at = query.now.saturating_add(nanos(expiry));
        if !reply.is_full {
            self.full_since = None;
            return 0;
        }
        let since = self.full_since.filter(|_| reply.admitted == 0).unwrap_or(now);
        self.full_since = Some(since);
        now.saturating_add((now.saturating_sub(since) / 8).clamp(SHORTEST_POLL, LONGEST_POLL))
    }
}
