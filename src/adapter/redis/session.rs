//! The state that the query task keeps between two exchanges with the store.

use super::{
    flight::Counted,
    protocol::{Gate, Known, Query, Returned, Updates},
    telemetry::StoreLost,
};
use crate::policy::{Amounts, Remaining, nanos};

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

impl Session {
    /// Returns amounts that a request took at `used_at`, at most `hold` after the store counts them.
    pub(super) fn give_back(&mut self, used_at: u64, amounts: Amounts, hold: u64) {
        let since = i64::try_from(used_at.saturating_sub(hold) / 1_000).unwrap_or(i64::MAX);
        self.give_back_since(since.saturating_add(self.offset), amounts);
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
        let Updates { pause_until, resume, more, less, .. } = &self.updates;
        *resume || *pause_until > now || !more.is_empty() || !less.is_empty()
    }

    /// Returns the updates for a query. A later query does not return the same amounts again.
    pub(super) fn next_updates(&mut self, now: u64) -> Updates {
        self.updates.gates.retain(|gate| now < gate.until);
        Updates { less: std::mem::take(&mut self.updates.less), ..self.updates.clone() }
    }

    /// Removes the updates that the store has received with a query. Newer updates remain.
    pub(super) fn reported(&mut self, Query { updates: sent, .. }: &Query) {
        self.updates.more = self.updates.more.minus(&sent.more);
        if self.updates.pause_until <= sent.pause_until {
            self.updates.pause_until = 0;
        }
        self.updates.resume &= !sent.resume;
        self.updates.gates.retain(|gate| !sent.gates.contains(gate));
    }
}
