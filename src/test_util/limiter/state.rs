//! The state of a simulated caller.

use super::script::Call;
use crate::limit::core::{Grant, Ticket};
use crate::policy::{Amounts, Taken, Unit};

/// The state of a caller.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    Waiting(Ticket),
    /// Woken, and not polled since.
    Woken(Ticket),
    Held(Grant),
    Sent(Grant, u64),
    /// The head of the response has arrived, and its body has not ended.
    Reading,
    Ended,
}

#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) call: Call,
    pub(super) state: State,
    /// The order in which the caller joined the queue.
    pub(super) joined: u64,
    /// Whether it waits again after its permits have expired, and is still in flight.
    pub(super) is_in_flight: bool,
    /// When its tokens were taken, and how many it takes so far.
    pub(super) tokens: Tokens,
    /// The earlier of its bounds.
    pub(super) bound: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tokens {
    pub(super) taken_at: u64,
    pub(super) taken: Taken,
}

impl Tokens {
    pub(super) fn new(taken_at: u64, tokens: u32) -> Self {
        Self { taken_at, taken: Taken::of(Amounts::of(Unit::Tokens, tokens)) }
    }

    pub(super) fn charged(&self) -> u32 {
        self.taken.charged.get(Unit::Tokens)
    }

    /// Records the end of the permit. Returns what the request takes.
    pub(super) fn end(&mut self, is_accepted: bool) -> Taken {
        self.taken.is_accepted = Some(is_accepted);
        self.taken
    }
}

/// A violated guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub(crate) String);

/// Returns a violation with the text if the condition holds.
macro_rules! violation_if {
    ($condition:expr, $($text:tt)+) => {
        if $condition {
            return Err($crate::test_util::limiter::Violation(format!($($text)+)));
        }
    };
}
pub(super) use violation_if;
