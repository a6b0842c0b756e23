//! Requests that take the permits of two limiters together.
//!
//! Such a request waits in both queues as a late waiter, so that its turn only wakes it. It takes its permits when they
//! are available in both.

use super::{Ask, Core, PATIENCE, Stage, Ticket};
use crate::error::Refusal;

/// How long a request keeps its turn, in which no other request of its queue is served, without reading it again: 1 s in
/// nanoseconds.
const KEPT: u32 = 1_000_000_000;

impl Core {
    /// Queues a request whose permits are granted only by [`status`](Self::status), or refuses it. With `keeps_turn`, the
    /// request keeps its turn while it reads its [`turn`](Self::turn) at least once per second.
    pub fn join(&mut self, ask: &Ask<'_>, keeps_turn: bool, now: u64) -> Result<Ticket, Refusal> {
        let due = self.foresee(ask, now)?;
        // While the request waits for the other limiter, no forecast refuses the waiters behind it.
        self.queue.has_joint |= keeps_turn;
        self.enqueue(ask, due, (true, if keeps_turn { KEPT } else { PATIENCE }), now)
    }

    /// Returns when the permits of a new request are available. Refuses a request that can never be granted, or not
    /// within its bounds.
    pub fn foresee(&mut self, ask: &Ask<'_>, now: u64) -> Result<u64, Refusal> {
        if let Some(refusal) = self.rejects(ask, now) {
            return Err(self.count(refusal));
        }
        self.arrive(ask.cost, now);
        let due = self.due_of_new(ask, now);
        match self.missed_by_new(ask, due, now) {
            Some(reason) => Err(self.count_refused(reason, due, now)),
            None => Ok(due),
        }
    }

    /// Returns whether a new request needs no wait.
    pub fn is_free(&mut self, ask: &Ask<'_>, now: u64) -> bool {
        if self.rejects(ask, now).is_some() || !self.arrive(ask.cost, now) {
            return false;
        }
        if self.is_full_for(ask.is_in_flight) {
            return false;
        }
        let (cost, progress) = (ask.cost.get(), self.progress());
        self.supply.progress(progress, cost, now);
        self.due_of_new(ask, now) <= now && self.supply.is_open(cost, now)
    }

    /// Returns whether [`status`](Self::status) would grant the permits of a queued request now. Its offer ends if they
    /// are not available any more.
    pub fn turn(&mut self, ticket: Ticket, now: u64) -> Turn {
        self.restore(ticket, now);
        self.advance(now);
        match self.queue.find(ticket) {
            Some((_, Stage::Refused(_), _)) => Turn::Refused,
            Some((slot, _, waiter)) if waiter.cost.get() > self.supply.largest() => {
                let refusal = self.too_costly(waiter.cost);
                self.refuse(slot, refusal, now);
                Turn::Refused
            }
            Some((slot, Stage::Offered(_), _)) => {
                let head = self.head().filter(|head| head.slot == slot);
                if head.is_some_and(|head| self.has_permits(&head, now)) {
                    self.queue.keep_turn(slot, now);
                    return Turn::Now;
                }
                self.queue.withdraw_offer(slot);
                Turn::Later
            }
            _ => Turn::Later,
        }
    }
}

/// Whether a queued request gets its permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Later,
    Now,
    Refused,
}
