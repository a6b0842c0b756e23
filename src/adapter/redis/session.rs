//! The state that the query task keeps between two exchanges with the store.

use super::{
    flight::Counted,
    protocol::{FlightReport, Gate, Known, Query, Updates},
    telemetry::StoreLost,
};
use crate::policy::{Remaining, nanos};

/// The maximum number of rate-limit policies of the service that are reported to the store.
const MAX_GATES: usize = 8;

#[derive(Default)]
pub(super) struct Session {
    /// The identity of the store's memory, as stated in the store's last reply, and the time of that reply.
    pub(super) known: Option<(Known, u64)>,
    pub(super) late: u32,
    pub(super) counted: Counted,
    pub(super) lost: Option<StoreLost>,
    /// The number of permits that the last query fetched in advance.
    pub(super) lease: u32,
    /// The updates that the next query reports.
    pub(super) updates: Updates,
}

impl Session {
    /// Stores the remaining permits that the service reported, minus the permits that the service may not have counted
    /// yet. A reset after the `longest` pause counts as this pause.
    pub(super) fn remember(&mut self, remaining: Remaining, uncounted: u64, longest: u64, now: u64) {
        let (policy, gates) = (remaining.policy(), &mut self.updates.gates);
        gates.retain(|gate| gate.policy != policy);
        if gates.len() < MAX_GATES {
            let left = remaining.left().saturating_sub(uncounted);
            let until = now.saturating_add(nanos(remaining.reset_after()).min(longest));
            gates.push(Gate { policy, left, until });
        }
    }

    /// Returns whether there are updates that must be reported without delay.
    pub(super) fn has_urgent_updates(&self, now: u64) -> bool {
        self.updates.resume || self.updates.pause_until > now
    }

    /// Creates a query that also contains all recorded updates.
    pub(super) fn query(&mut self, (want, unit): (u32, u32), share_used: Option<u64>, now: u64) -> Query {
        self.updates.gates.retain(|gate| now < gate.until);
        let (known, flight, updates) = (self.known, FlightReport::default(), self.updates.clone());
        Query { want, unit, now, known, share_used, flight, updates }
    }

    /// Removes the updates that the store has received with a query. Newer updates remain.
    pub(super) fn reported(&mut self, sent: &Updates) {
        if self.updates.pause_until <= sent.pause_until {
            self.updates.pause_until = 0;
        }
        self.updates.resume &= !sent.resume;
        self.updates.gates.retain(|gate| !sent.gates.contains(gate));
    }
}
