//! Checks the wait of a refusal: runs a copy of the core in which the request has no bounds, and compares the times.

use super::super::{Ask, Core, Latest, Stage, Submitted, Ticket};

const UNBOUNDED: Latest = Latest { max_wait: u64::MAX, deadline: u64::MAX };

/// Returns when a request that was refused on arrival would have been granted.
pub(super) fn grant_of_new(core: &Core, ask: Ask, now: u64) -> Option<u64> {
    let mut core = core.clone();
    let ask = Ask { latest: UNBOUNDED, max_queue: usize::MAX, ..ask };
    match core.submit(ask, now).ok()? {
        Submitted::Granted(grant) => Some(grant.at),
        Submitted::Queued(ticket) => run(core, ticket, now),
    }
}

/// Returns when a waiter that was refused would have been granted.
pub(super) fn grant_of_refused(core: &Core, ticket: Ticket, now: u64) -> Option<u64> {
    let mut core = core.clone();
    let slot = core.queue.slots.get_mut(ticket.slot)?;
    slot.waiter.latest = UNBOUNDED;
    core.queue.put_back(ticket.slot);
    run(core, ticket, now)
}

/// Returns when a waiter is granted if nothing else happens. Returns `None` if another waiter is refused before, because
/// no forecast includes that.
fn run(mut core: Core, ticket: Ticket, start: u64) -> Option<u64> {
    let (mut now, refused) = (start, core.refused);
    for _ in 0..1_000 {
        core.advance(now);
        if let Some((_, Stage::Granted(at), _)) = core.queue.find(ticket) {
            return Some(*at).filter(|_| core.refused == refused);
        }
        let head = core.queue.head(core.supply.quotas.largest())?;
        let due = core.due(&head, now);
        if due <= now {
            return None;
        }
        now = due;
    }
    None
}
