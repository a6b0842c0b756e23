//! The state of the core that the simulation of the test kit reads.

use super::{Ask, Core, Latest, Stage, Status, Submitted, Ticket};

const UNBOUNDED: Latest = Latest { max_wait: u64::MAX, deadline: u64::MAX };

impl Core {
    /// Returns the stage of a ticket that has not ended.
    pub fn stage(&self, ticket: Ticket) -> Option<&Stage> {
        self.queue.find(ticket).map(|(_, stage, _)| stage)
    }

    /// Returns the number of slots of the queue that are in use, and of all.
    pub fn slots(&self) -> (usize, usize) {
        (self.queue.slots.used as usize, self.queue.slots.len())
    }

    /// Returns when a request that was refused on arrival would have been granted.
    pub fn grant_of_new(&self, ask: Ask<'_>, now: u64) -> Option<u64> {
        let mut core = self.clone();
        let ask = Ask { latest: UNBOUNDED, max_queue: usize::MAX, ..ask };
        match core.submit(ask, now).ok()? {
            Submitted::Granted(grant) => Some(grant.at),
            Submitted::Queued(ticket) => core.grant_of(ticket, now),
        }
    }

    /// Returns when a waiter that was refused would have been granted.
    pub fn grant_of_refused(&self, ticket: Ticket, now: u64) -> Option<u64> {
        let mut core = self.clone();
        let slot = core.queue.slots.get_mut(ticket.slot)?;
        slot.waiter.latest = UNBOUNDED;
        core.queue.put_back(ticket.slot);
        core.grant_of(ticket, now)
    }

    /// Returns when a waiter is granted if nothing else happens. Returns `None` if another waiter is refused before,
    /// because no forecast includes that.
    fn grant_of(mut self, ticket: Ticket, start: u64) -> Option<u64> {
        let (mut now, refused) = (start, self.refused);
        for _ in 0..1_000 {
            self.advance(now);
            let granted_at = match self.stage(ticket) {
                Some(Stage::Granted(at)) => Some(*at),
                _ => self.poll_offered(ticket, now),
            };
            if granted_at.is_some() {
                return granted_at.filter(|_| self.refused == refused);
            }
            self.collect(now);
            let head = self.head()?;
            let due = self.due(&head, now);
            if due <= now {
                return None;
            }
            now = due;
        }
        None
    }

    /// Collects all granted permits, because those that are not collected return their amounts.
    fn collect(&mut self, now: u64) {
        if self.units.is_none() {
            return;
        }
        while let Some(ticket) = self.queue.uncollected().and_then(|(slot, ..)| self.queue.ticket(slot)) {
            self.status(ticket, now);
        }
    }

    /// Polls the late waiters that were woken at once, as a forecast assumes. Returns the time of the grant of `ticket`.
    fn poll_offered(&mut self, ticket: Ticket, now: u64) -> Option<u64> {
        while let Some(head) = self.head() {
            self.queue.offered_at(&head)?;
            let offered = self.queue.ticket(head.slot)?;
            if let (Status::Granted(grant), true) = (self.status(offered, now), offered == ticket) {
                return Some(grant.at);
            }
        }
        None
    }
}
