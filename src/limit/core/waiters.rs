//! What becomes of the waiters.

use super::{Core, Grant, Stage, Status, Ticket};
use crate::error::{Reason, Refusal};

impl Core {
    /// Returns what became of a waiter. Any result but `Waiting` ends the ticket. Permits that were granted too long
    /// ago, or before a pause, have expired: the waiter then returns to its position.
    pub fn status(&mut self, ticket: Ticket, now: u64) -> Status {
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else {
            return Status::Refused(Refusal::new(Reason::MaxWait, None));
        };
        let cost = waiter.cost;
        match *stage {
            Stage::Granted(at) if self.is_expired(at, now) => self.expire(slot, &waiter, at, now),
            Stage::Granted(taken_at) => {
                self.queue.release(slot);
                // The permits of a request that was granted before the limiter began to learn keep that time.
                let at = if taken_at < self.supply.learns_since() { taken_at } else { now };
                return Status::Granted(Grant { at, cost, taken_at });
            }
            Stage::Refused(ref refusal) => {
                let refusal = refusal.clone();
                self.queue.release(slot);
                return Status::Refused(refusal);
            }
            Stage::Waiting if !waiter.is_late => return Status::Waiting,
            Stage::Absent | Stage::Waiting | Stage::Offered(_) | Stage::Free => {}
        }
        if cost.get() > self.supply.largest() {
            // The quotas have changed since the waiter was granted its permits.
            self.queue.release(slot);
            let refusal = self.too_costly(cost);
            return Status::Refused(self.count(refusal));
        }
        self.restore(ticket, now);
        self.serve(now, Some(slot));
        match self.queue.find(ticket) {
            Some((_, Stage::Granted(_) | Stage::Refused(_), _)) => self.status(ticket, now),
            _ => {
                self.queue.withdraw_offer(slot);
                Status::Waiting
            }
        }
    }

    /// Puts an absent waiter back at its position.
    pub(super) fn restore(&mut self, ticket: Ticket, now: u64) {
        if let Some((slot, Stage::Absent, waiter)) = self.queue.find(ticket) {
            self.queue.enter(slot);
            self.watch_bound(waiter.latest);
            self.lateness.hold(now);
            self.overtake(waiter.rank(), now);
        }
    }

    /// Ends a ticket. Permits that were granted but not collected are wasted. Returns `false` if it has already ended.
    pub fn cancel(&mut self, ticket: Ticket, now: u64) -> bool {
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else { return false };
        if let Stage::Granted(at) = *stage {
            self.waste_queued(&waiter, at, now);
        }
        self.queue.release(slot);
        self.lateness.hold(now);
        self.advance(now);
        true
    }

    /// Returns the next waiter that was granted or refused since the last call. It may have been cancelled since.
    pub fn pop_woken(&mut self) -> Option<Ticket> {
        self.queue.pop_woken()
    }
}
