//! What the task knows between two exchanges.

use std::time::Duration;

use super::{
    protocol::{Gate, Known, Query},
    telemetry::StoreLost,
};
use crate::{limit::queue::external::nanos, policy::Remaining};

/// The most quotas of the service that are reported to the store.
const MOST_GATES: usize = 8;

/// What is known between two exchanges, and what the next one reports.
#[derive(Default)]
pub(super) struct Session {
    pub(super) known: Option<(Known, u64)>,
    /// No query before this moment.
    pub(super) return_at: u64,
    /// That moment is for so many permits together. Fewer may be available earlier.
    pub(super) return_unit: u32,
    pub(super) late: u32,
    pub(super) lost: Option<StoreLost>,
    /// The permits that the last query fetched ahead.
    pub(super) lease: u32,
    pause_until: u64,
    resume: bool,
    /// The remaining permits that the service reported, and when each entry ends.
    gates: Vec<(Gate, u64)>,
}

impl Session {
    /// Stores the remaining permits that the service reported, less those that it may not have counted.
    pub(super) fn remember(&mut self, remaining: Remaining, uncounted: u64, now: u64) {
        self.gates.retain(|(gate, _)| gate.policy != remaining.policy());
        if self.gates.len() < MOST_GATES {
            let left = remaining.left().saturating_sub(uncounted);
            let gate = Gate { policy: remaining.policy(), left, lasts: Duration::ZERO };
            self.gates.push((gate, now.saturating_add(nanos(remaining.more_in()))));
        }
    }

    pub(super) fn pause(&mut self, until: u64) {
        self.pause_until = self.pause_until.max(until);
    }

    pub(super) fn resume(&mut self) {
        (self.pause_until, self.resume) = (0, true);
        self.gates.clear();
    }

    /// Whether there is something to report without delay.
    pub(super) fn has_news(&self, now: u64) -> bool {
        self.resume || self.pause_until > now
    }

    /// Creates a query that also reports everything.
    pub(super) fn query(&mut self, want: u32, unit: u32, back: Option<u64>, now: u64) -> Query {
        self.gates.retain(|(_, until)| now < *until);
        let until = |at: u64| Duration::from_nanos(at.saturating_sub(now));
        Query {
            want,
            unit,
            known: self.known.map(|(known, at)| (known, Duration::from_nanos(now.saturating_sub(at)))),
            back,
            pause: until(self.pause_until),
            resume: self.resume,
            gates: self.gates.iter().map(|(gate, at)| Gate { lasts: until(*at), ..*gate }).collect(),
        }
    }

    /// The store has received `query`, which was sent at `sent`. Newer information remains to be reported.
    pub(super) fn reported(&mut self, query: &Query, sent: u64) {
        if self.pause_until <= sent.saturating_add(nanos(query.pause)) {
            self.pause_until = 0;
        }
        self.resume &= !query.resume;
        self.gates.retain(|(gate, _)| {
            !query.gates.iter().any(|told| told.policy == gate.policy && told.left == gate.left)
        });
    }
}
