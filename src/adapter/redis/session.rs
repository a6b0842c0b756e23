//! The state of the task between two exchanges.

use super::{
    protocol::{Gate, Known, News, Query},
    telemetry::StoreLost,
};
use crate::{limit::queue::external::nanos, policy::Remaining};

/// The most quotas of the service that are reported to the store.
const MOST_GATES: usize = 8;

#[derive(Default)]
pub(super) struct Session {
    /// The memory of the store as of its last reply, and the time of that reply.
    pub(super) known: Option<(Known, u64)>,
    pub(super) late: u32,
    pub(super) lost: Option<StoreLost>,
    /// The permits that the last query fetched ahead.
    pub(super) lease: u32,
    /// The news that the next query reports.
    pub(super) news: News,
}

impl Session {
    /// Stores the remaining permits that the service reported, less those that it may not have counted.
    pub(super) fn remember(&mut self, remaining: Remaining, uncounted: u64, now: u64) {
        let (policy, gates) = (remaining.policy(), &mut self.news.gates);
        gates.retain(|gate| gate.policy != policy);
        if gates.len() < MOST_GATES {
            let left = remaining.left().saturating_sub(uncounted);
            gates.push(Gate { policy, left, until: now.saturating_add(nanos(remaining.reset_after())) });
        }
    }

    /// Whether there is something to report without delay.
    pub(super) fn has_news(&self, now: u64) -> bool {
        self.news.resume || self.news.pause_until > now
    }

    /// Creates a query that also reports everything.
    pub(super) fn query(&mut self, want: u32, unit: u32, back: Option<u64>, now: u64) -> Query {
        self.news.gates.retain(|gate| now < gate.until);
        Query { want, unit, now, known: self.known, back, news: self.news.clone() }
    }

    /// The store has received `sent`. Newer information remains to be reported.
    pub(super) fn reported(&mut self, sent: &News) {
        if self.news.pause_until <= sent.pause_until {
            self.news.pause_until = 0;
        }
        self.news.resume &= !sent.resume;
        self.news.gates.retain(|gate| !sent.gates.contains(gate));
    }
}
