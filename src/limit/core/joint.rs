//! Requests that take the permits of two limiters together.
//!
//! Such a request waits in both queues as a late waiter, so that its turn only wakes it. It takes its permits when they
//! are available in both.

use super::{Ask, Core, Grant, PATIENCE, Stage, Status, Ticket};
use crate::error::{Reason, Refusal};

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
        self.rejects(ask, now).is_none()
            && self.arrive(ask.cost, now)
            && self.is_ready((ask.cost, ask.is_in_flight), ask.amounts, now)
            && self.due_of_new(ask, now) <= now
    }

    /// Takes the permits of a queued request whose [`turn`](Self::turn) it is. Returns `Err(None)` if the store does
    /// not grant them. The limiter calls the store again after 100 ms, or when the store reports a change. Any other
    /// result ends the ticket.
    pub fn take_turn(&mut self, ticket: Ticket, now: u64) -> Result<Grant, Option<Refusal>> {
        match self.status(ticket, now) {
            Status::Granted(grant) => Ok(grant),
            Status::Refused(refusal) => Err(Some(refusal)),
            Status::Waiting if self.is_stored() => {
                self.supply.set_refused(Some(now));
                Err(None)
            }
            // Never happens. An error is better than a caller that tries again without a wait.
            Status::Waiting => Err(Some(Refusal::new(Reason::Unavailable, None))),
        }
    }

    /// Returns whether [`status`](Self::status) would grant the permits of a queued request now. Its offer ends if
    /// the permits are no longer available. A refusal ends the ticket.
    pub fn turn(&mut self, ticket: Ticket, now: u64) -> Result<bool, Refusal> {
        self.restore(ticket, now);
        // However late this call is, `advance` must not skip the waiter: its caller has been woken and waits for no other
        // event.
        if let Some((slot, Stage::Offered(_), _)) = self.queue.find(ticket) {
            self.queue.keep_turn(slot, now);
        }
        self.advance(now);
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else { return Ok(false) };
        let is_offered = matches!(stage, Stage::Offered(_));
        if matches!(stage, Stage::Refused(_)) || waiter.cost.get() > self.supply.largest() {
            if let Status::Refused(refusal) = self.status(ticket, now) {
                return Err(refusal);
            }
        } else if is_offered {
            let head = self.head().filter(|head| head.slot == slot);
            if head.is_some_and(|head| self.has_permits(&head, now)) {
                self.queue.keep_turn(slot, now);
                return Ok(true);
            }
            self.queue.withdraw_offer(slot);
        }
        Ok(false)
    }
}
