//! The state of the core that the simulation of the test kit reads.

use super::{Core, Stage, Ticket};

impl Core {
    /// Returns the stage of a ticket that has not ended.
    pub fn stage(&self, ticket: Ticket) -> Option<&Stage> {
        self.queue.find(ticket).map(|(_, stage, _)| stage)
    }

    /// Returns the number of slots of the queue that are in use, and of all.
    pub fn slots(&self) -> (usize, usize) {
        (self.queue.slots.used as usize, self.queue.slots.len())
    }
}
