//! The limiter's core: decides when each request gets its permits.
//!
//! The core is a state machine. It has no clock, lock, waker or timer, so that tests, simulations and models drive the
//! same code as the limiter. The caller passes the time, as nanoseconds since the limiter was created. Times never
//! decrease from one call to the next.
//!
//! - [`Core::submit`] grants a request its permits, queues it or refuses it.
//! - [`Core::advance`] grants the permits that have become available to the first waiters. Every other call that can
//!   make a waiter the first one also grants. [`Core::next_wake`] returns when to call `advance` next.
//! - [`Core::pop_woken`] returns the waiters that were granted or refused. [`Core::status`] returns the outcome.
//!
//! A grant to a waiter that does not collect it expires, and the next permits go to the waiter behind it. The absent
//! waiter keeps its position, and returns to it when its status is read.

mod block;
mod bounds;
mod feedback;
mod gcra;
pub(in crate::limit) mod grant_log;
pub(in crate::limit) mod lateness;
pub(in crate::limit) mod latest;
mod queue;
mod quotas;
#[cfg(any(test, feature = "test-util"))]
mod random;
mod request;
pub(in crate::limit) mod server;
#[cfg(any(test, feature = "test-util"))]
pub(crate) mod sim;
mod slots;
pub(in crate::limit) mod supply;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

pub(crate) use self::{
    block::Block,
    feedback::{End, Feedback, LearnedRate, Snapshot},
    latest::Latest,
    quotas::Spread,
    request::{Ask, CoreSettings, Grant, Rule, Status, Submitted},
    slots::Ticket,
};
use self::{
    block::Blocks,
    lateness::Lateness,
    queue::Queue,
    server::{limits::ServerLimits, unconfirmed::Unconfirmed},
    slots::{Stage, Waiter},
    supply::Supply,
};
use crate::{
    error::{Reason, Refusal},
    policy::{Quota, priority::Shares},
};

/// The state of one limiter.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    supply: Supply,
    queue: Queue,
    server: ServerLimits,
    unconfirmed: Unconfirmed,
    lateness: Lateness,
    blocks: Blocks,
    obeys_remaining: bool,
    granted: u64,
    /// The number of permits whose requests have ended.
    released: u64,
    /// The number of permits that were released without an accepted request.
    not_accepted: u64,
    refused: u64,
    /// The highest cost of any request since the queue was last empty.
    costliest: u64,
    /// When to check the bounds of waiters that others have overtaken.
    recheck_at: Option<u64>,
}

impl Core {
    /// Creates a limiter with all permits available.
    pub(crate) fn new(quotas: &[Quota], settings: CoreSettings) -> Self {
        let mut shares = Shares::default();
        settings.lower_share.into_iter().for_each(|percent| shares.set_percent(percent));
        let supply = Supply::new(quotas, settings.rule);
        Self {
            server: ServerLimits::new(supply.learner().is_some() || !quotas.is_empty()),
            supply,
            queue: Queue::new(shares),
            unconfirmed: Unconfirmed::default(),
            lateness: Lateness::new(quotas),
            blocks: Blocks::new(quotas),
            obeys_remaining: settings.obeys_remaining,
            granted: 0,
            released: 0,
            not_accepted: 0,
            refused: 0,
            costliest: 1,
            recheck_at: None,
        }
    }

    /// Grants the permits of a new request now, or queues the request, or refuses it because its wait would exceed its
    /// bounds.
    pub(crate) fn submit(&mut self, ask: Ask, now: u64) -> Result<Submitted, Refusal> {
        let due = match self.decide(&ask, now)? {
            Ok(grant) => return Ok(Submitted::Granted(grant)),
            Err(due) => due,
        };
        let rank = ask.priority.rank();
        let reason = if self.queue.len(rank) >= ask.max_queue {
            Some(Reason::QueueFull)
        } else {
            ask.latest.missed_by(due, now, self.grace())
        };
        if let Some(reason) = reason {
            return Err(self.refusal(reason, due, now));
        }
        let ticket = self.queue.insert(Waiter { cost: ask.cost, rank, latest: ask.latest });
        self.overtake(rank + 1, now);
        Ok(Submitted::Queued(ticket))
    }

    /// Grants the permits of a new request now, or refuses it with the wait that it would need.
    pub(crate) fn try_submit(&mut self, ask: Ask, now: u64) -> Result<Grant, Refusal> {
        match self.decide(&ask, now)? {
            Ok(grant) => Ok(grant),
            Err(due) => Err(self.refusal(Reason::MaxWait, due, now)),
        }
    }

    /// Grants the permits of a new request, or returns when they would be available.
    #[inline]
    fn decide(&mut self, ask: &Ask, now: u64) -> Result<Result<Grant, u64>, Refusal> {
        if ask.latest.deadline < now {
            return Err(self.refusal(Reason::Deadline, now, now));
        }
        let (cost, rank, largest) = (ask.cost, ask.priority.rank(), self.supply.quotas.largest());
        if cost.get() > largest {
            return Err(self.too_costly());
        }
        self.advance(now);
        let is_first = self.queue.is_empty();
        let permits = u64::from(cost.get());
        self.costliest = if is_first { permits } else { self.costliest.max(permits) };
        if let Some(reserve) = self.queue.reserve_of_new(rank, cost, largest) {
            if self.take(cost, reserve, now, now) {
                if !is_first {
                    self.queue.grant_new(rank, cost);
                    self.overtake(rank + 1, now);
                }
                return Ok(Ok(Grant { at: now, cost }));
            }
        }
        let wanted = &self.queue.wanted;
        let own = wanted[rank].saturating_add(permits);
        Ok(Err(self.forecast(now, self.queue.shares.total(rank, own, wanted, 0))))
    }

    /// Returns what became of a waiter. Any result but `Waiting` ends the ticket. Permits that were granted too long
    /// ago, or before a pause, have expired: the waiter then returns to its position.
    pub(crate) fn status(&mut self, ticket: Ticket, now: u64) -> Status {
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else {
            return Status::Refused(Refusal::new(Reason::MaxWait, None));
        };
        let cost = waiter.cost;
        match *stage {
            Stage::Granted(at) if self.is_expired(at, now) => self.expire(slot, cost, at, now),
            Stage::Granted(_) => {
                self.queue.release(slot);
                return Status::Granted(Grant { at: now, cost });
            }
            Stage::Refused(ref refusal) => {
                let refusal = refusal.clone();
                self.queue.release(slot);
                return Status::Refused(refusal);
            }
            Stage::Absent => {}
            Stage::Waiting | Stage::Free => return Status::Waiting,
        }
        if cost.get() > self.supply.quotas.largest() {
            // The quotas have changed since the waiter was granted its permits.
            self.queue.release(slot);
            return Status::Refused(self.too_costly());
        }
        self.queue.enter(slot);
        self.lateness.hold(now);
        self.overtake(waiter.rank, now);
        self.advance(now);
        match self.queue.find(ticket) {
            Some((_, Stage::Granted(_) | Stage::Refused(_), _)) => self.status(ticket, now),
            _ => Status::Waiting,
        }
    }

    /// Ends a ticket. Permits that were granted but not collected are wasted.
    pub(crate) fn cancel(&mut self, ticket: Ticket, now: u64) {
        let Some((slot, stage, waiter)) = self.queue.find(ticket) else { return };
        if let Stage::Granted(at) = *stage {
            self.waste(waiter.cost, at, now);
        }
        self.queue.release(slot);
        self.lateness.hold(now);
        self.advance(now);
    }

    /// Grants the permits that have become available to the waiters in order. Refuses the first waiters whose permits
    /// cannot become available in time, and expires permits that were not collected.
    pub(crate) fn advance(&mut self, now: u64) {
        self.expire_uncollected(now);
        self.serve(now);
        if self.recheck_at.is_some_and(|at| at <= now) {
            self.refuse_late(now);
            self.serve(now);
        }
    }

    fn serve(&mut self, now: u64) {
        while let Some(head) = self.queue.head(self.supply.quotas.largest()) {
            if self.take(head.waiter.cost, head.reserve, self.lateness.start(now), now) {
                self.queue.grant(&head, now);
            } else if let Some(refusal) = self.missed(&head, now) {
                self.queue.refuse(head.slot, refusal);
                self.lateness.hold(now);
            } else {
                break;
            }
        }
    }

    /// Returns when [`advance`](Self::advance) must be called next. Returns `None` if no request is
    /// queued.
    pub(crate) fn next_wake(&self, now: u64) -> Option<u64> {
        let expiry = self
            .queue
            .uncollected()
            .map(|(_, _, at)| at.saturating_add(self.longest_uncollected()).saturating_add(1));
        let head = self.queue.head(self.supply.quotas.largest()).map(|head| {
            let due = self.due(&head, now);
            let probe_ends = self.supply.learner().and_then(|learner| learner.probe_ends());
            let wake = probe_ends.filter(|_| due <= now).unwrap_or_else(|| self.gather(&head, due, now));
            wake.min(head.waiter.latest.last(self.grace()))
        });
        let recheck = self.recheck_at.filter(|_| self.queue.bounded > 0);
        [expiry, head, recheck].into_iter().flatten().min()
    }

    /// Returns the next waiter that was granted or refused since the last call. It may have been cancelled since.
    pub(crate) fn pop_woken(&mut self) -> Option<Ticket> {
        self.queue.pop_woken()
    }

    /// Takes permits if they and `reserve` others are available since `from` or later. Returns whether it took them.
    #[inline]
    fn take(&mut self, cost: NonZeroU32, reserve: u64, from: u64, now: u64) -> bool {
        let (permits, progress) = (u64::from(cost.get()), self.progress());
        if !self.supply.is_open(cost.get(), progress, now) {
            return false;
        }
        if self.server.any() && self.server.tidy(now) {
            let earliest = self.server.earliest(now, permits);
            if earliest > now {
                self.lateness.hold(earliest);
                return false;
            }
        }
        let needed = permits.saturating_add(reserve);
        let at = self.supply.due(from, needed, needed);
        if at > now {
            return false;
        }
        self.supply.take(cost.get(), at, progress, now);
        self.lateness.taken_at = at.max(self.lateness.taken_at);
        self.server.spend(permits);
        self.granted = self.granted.wrapping_add(permits);
        true
    }
}
