//! The state that the query task keeps between two exchanges with the store: the updates to report, the requests in
//! flight that the store counts, and the loss of the store, with its log events and metrics.

use std::{num::NonZeroU32, time::Duration};

use super::protocol::{FlightReport, Gate, Known, Query, Reply, Returned, Updates};
use crate::{
    clock::{self, Instant},
    limit::LocalLimiter,
    policy::{Amounts, Remaining, nanos},
    telemetry::{
        LIMIT,
        event::millis,
        metric::{self, Raised},
    },
};

/// The maximum number of rate-limit policies of the service that are reported to the store.
const MAX_GATES: usize = 8;

/// The maximum number of requests whose amounts one query returns. The estimates of further ones stay counted.
const MAX_RETURNED: usize = 1_000;

#[derive(Default)]
pub(super) struct Session {
    /// The identity of the store's memory, as stated in the store's last reply, and the time of that reply.
    pub(super) known: Option<(Known, u64)>,
    pub(super) late: u32,
    pub(super) counted: Counted,
    /// The loss of the store, if it was logged and has not ended.
    pub(super) logged: Option<StoreLost>,
    /// The number of permits that the last query fetched in advance.
    pub(super) lease: u32,
    /// The updates that the next query reports.
    pub(super) updates: Updates,
    /// The store's time minus the limiter's, in µs. The actual difference may be larger, but not smaller.
    pub(super) offset: i64,
}

/// The store receives a query at most this long after it was sent, in µs.
const REPORTED_WITHIN: i64 = 10_000_000;

impl Session {
    /// Returns amounts that a request took at `used_at`, at most `hold` after the store counts them.
    pub(super) fn give_back(&mut self, used_at: u64, amounts: Amounts, hold: u64) {
        self.give_back_since(self.store_time(used_at.saturating_sub(hold)), amounts);
    }

    /// Returns the store's time at `at`, in µs. The actual time may be later, but not earlier.
    fn store_time(&self, at: u64) -> i64 {
        i64::try_from(at / 1_000).unwrap_or(i64::MAX).saturating_add(self.offset)
    }

    /// Records for the store that the process has lifted the pause.
    pub(super) fn resume(&mut self, now: u64) {
        // The store may receive an unreported pause of this process later than this call, which lifts it too.
        let resumed_at = Some(match self.known {
            Some(_) if self.updates.pause_until <= now => self.store_time(now),
            Some(_) => self.store_time(now).saturating_add(REPORTED_WITHIN),
            None => i64::MAX,
        });
        let updates = &mut self.updates;
        updates.resumed_at = updates.resumed_at.max(resumed_at);
        updates.resumes = updates.resumes.wrapping_add(1);
        updates.pause_until = 0;
        updates.gates.clear();
    }

    /// Returns amounts that the store has counted since `since`, by its clock.
    pub(super) fn give_back_since(&mut self, since: i64, amounts: Amounts) {
        if !amounts.is_empty() && self.updates.less.len() < MAX_RETURNED {
            self.updates.less.push(Returned { since, amounts });
        }
    }

    /// Stores the remaining permits that the service reported, minus the permits that the service may not have counted
    /// yet. A reset after the `longest` pause counts as this pause. Until its reset, a policy keeps its fewest permits,
    /// because reports may arrive in a different order than the service sent them.
    pub(super) fn remember(&mut self, remaining: Remaining, uncounted: u64, longest: u64, now: u64) {
        let (policy, gates) = (remaining.policy(), &mut self.updates.gates);
        let left = remaining.left().saturating_sub(uncounted);
        let mut until = now.saturating_add(nanos(remaining.reset_after()).min(longest));
        if let Some(earlier) = gates.iter().find(|gate| gate.policy == policy && now < gate.until) {
            if earlier.left < left {
                return;
            }
            until = until.max(earlier.until);
        }
        gates.retain(|gate| gate.policy != policy);
        if gates.len() < MAX_GATES {
            gates.push(Gate { policy, left, until });
        }
    }

    /// Returns whether there are updates that must be reported without delay.
    pub(super) fn has_urgent_updates(&self, now: u64) -> bool {
        let Updates { pause_until, resumed_at, more, less, .. } = &self.updates;
        resumed_at.is_some() || *pause_until > now || !more.is_empty() || !less.is_empty()
    }

    /// Returns the updates for a query. A later query does not return the same amounts again.
    pub(super) fn next_updates(&mut self, now: u64) -> Updates {
        self.updates.gates.retain(|gate| now < gate.until);
        Updates { less: std::mem::take(&mut self.updates.less), ..self.updates.clone() }
    }

    /// Removes the updates that the store has received with a query. Newer updates remain.
    pub(super) fn reported(&mut self, Query { updates: sent, .. }: &Query) {
        self.updates.more = self.updates.more.minus(&sent.more);
        // The process has lifted the pause since the query, so all other updates are newer than it.
        if self.updates.resumes != sent.resumes {
            return;
        }
        self.updates.resumed_at = None;
        if self.updates.pause_until <= sent.pause_until {
            self.updates.pause_until = 0;
        }
        self.updates.gates.retain(|gate| !sent.gates.contains(gate));
    }
}

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
    /// The time of the store, in µs, until which it counts the requests.
    until: i64,
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

    /// Creates the report of a query, except for the number of requests.
    pub(super) fn report(&self, id: u64, spare: i64) -> FlightReport {
        let counted_until = if self.requests > 0 { self.until } else { 0 };
        FlightReport { id, requests: 0, spare, counted_until }
    }

    /// Records a reply. Returns the earliest time of the next query for a waiter.
    pub(super) fn replied(&mut self, query: &Query, reply: &Reply, expiry: Duration, now: u64) -> u64 {
        self.requests = query.flight.requests.saturating_add(reply.admitted);
        self.renew_at = query.now.saturating_add(nanos(expiry / 3));
        self.expires_at = query.now.saturating_add(nanos(expiry));
        self.until = reply.at.saturating_add(i64::try_from(expiry.as_micros()).unwrap_or(i64::MAX));
        if !reply.is_full {
            self.full_since = None;
            return 0;
        }
        let since = self.full_since.filter(|_| reply.admitted == 0).unwrap_or(now);
        self.full_since = Some(since);
        now.saturating_add((now.saturating_sub(since) / 8).clamp(SHORTEST_POLL, LONGEST_POLL))
    }
}

const DURATION: &str = "tower_outbound.limit.store.duration";
const LOST: &str = "tower_outbound.limit.store.lost";

/// Registers descriptions of the metrics with the installed recorder.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use ::metrics::{Unit, describe_gauge, describe_histogram};

    let duration = "Duration of the queries that shared limiters send to their store.";
    describe_histogram!(DURATION, Unit::Seconds, duration);
    describe_gauge!(LOST, Unit::Count, "Shared limiters whose store does not reply.");
}

/// Records the duration of an exchange with the store.
pub(super) fn exchanged(outcome: &'static str, took: Duration) {
    metric::record(DURATION, None, &[("outcome", outcome)], took);
}

/// Increments the gauge of lost stores, and decrements it when this value is dropped.
#[derive(Debug)]
pub(super) struct StoreLost {
    since: Instant,
    _lost: Option<Raised>,
}

impl StoreLost {
    pub(super) fn begin(why: &str, state: &'static str, retry_in: Duration) -> Self {
        tracing::warn!(
            target: LIMIT,
            error = why,
            state,
            retry_in_ms = millis(retry_in),
            "limiter's store stopped replying"
        );
        Self { since: clock::now(), _lost: Raised::new(LOST, None) }
    }

    pub(super) fn recovered(self) {
        tracing::info!(target: LIMIT, lost_ms = millis(self.since.elapsed()), "limiter's store replies again");
    }
}
