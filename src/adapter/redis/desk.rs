//! What is known between two questions, and what the next one is to tell.

use std::time::Duration;

use super::question::{Gate, Known, Question};
use crate::{limit::nanos, policy::Remaining, telemetry::StoreLost};

/// Quotas of the service that are told of at once.
const MOST_GATES: usize = 8;

/// Moments are in nanoseconds on the queue's clock.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) known: Option<(Known, u64)>,
    /// Not to be asked again before.
    pub(super) come_at: u64,
    /// For so many together. Fewer may be there before.
    pub(super) come_unit: u32,
    pub(super) failures: u32,
    pub(super) late: u32,
    pub(super) lost: Option<StoreLost>,
    pub(super) lease: u32,
    pause_until: u64,
    resume: bool,
    /// What the service has left.
    left: Vec<Left>,
}

/// So many by that policy of the service, until then.
#[derive(Debug)]
struct Left {
    policy: u64,
    permits: u64,
    until: u64,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            known: None,
            come_at: 0,
            come_unit: 0,
            failures: 0,
            late: 0,
            lost: None,
            lease: 1,
            pause_until: 0,
            resume: false,
            left: Vec::new(),
        }
    }

    /// What the service has said is left, less what it may not have counted.
    pub(super) fn hear(&mut self, remaining: Remaining, uncounted: u64, now: u64) {
        self.left.retain(|left| left.policy != remaining.policy());
        if self.left.len() < MOST_GATES {
            let permits = remaining.left().saturating_sub(uncounted);
            let until = now.saturating_add(nanos(remaining.more_in()));
            self.left.push(Left { policy: remaining.policy(), permits, until });
        }
    }

    pub(super) fn pause(&mut self, until: u64) {
        self.pause_until = self.pause_until.max(until);
    }

    pub(super) fn resume(&mut self) {
        (self.pause_until, self.resume) = (0, true);
        self.left.clear();
    }

    /// Whether there is something to tell that does not wait until somebody asks.
    pub(super) fn has_news(&self, now: u64) -> bool {
        self.resume || self.pause_until > now
    }

    /// A question that also tells all that is to be told.
    pub(super) fn question(&mut self, want: u32, unit: u32, back: Option<u64>, now: u64) -> Question {
        self.left.retain(|left| now < left.until);
        let until = |at: u64| Duration::from_nanos(at.saturating_sub(now));
        let gate = |left: &Left| Gate { policy: left.policy, left: left.permits, lasts: until(left.until) };
        Question {
            want,
            unit,
            known: self.known.map(|(known, at)| (known, Duration::from_nanos(now.saturating_sub(at)))),
            back,
            pause: until(self.pause_until),
            resume: self.resume,
            gates: self.left.iter().map(gate).collect(),
        }
    }

    /// The store has heard that question, which was sent then. What came up meanwhile is still to be told.
    pub(super) fn told(&mut self, question: &Question, sent: u64) {
        if self.pause_until <= sent.saturating_add(nanos(question.pause)) {
            self.pause_until = 0;
        }
        self.resume &= !question.resume;
        self.left.retain(|left| {
            !question.gates.iter().any(|told| told.policy == left.policy && told.left == left.permits)
        });
    }
}
