//! Requests for permits, and the storage of those that wait: slots that are linked into lists. Adding and removing a
//! waiter takes constant time.

use std::num::NonZeroU32;

use crate::{
    error::{Reason, Refusal},
    policy::{Amounts, Priority},
};

/// A request for permits.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub cost: NonZeroU32,
    pub priority: Priority,
    pub latest: Latest,
    /// The maximum number of other waiters of the same or a higher priority.
    pub max_queue: usize,
    /// Whether earlier permits of the request have expired before it was sent.
    pub is_renewed: bool,
    /// Whether the request is already in flight. Only a renewed one can be.
    pub is_in_flight: bool,
    /// What the request takes of the quotas of other units.
    pub amounts: &'a Amounts,
}

/// Permits that were granted, and the time at which their caller learned of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    pub at: u64,
    pub cost: NonZeroU32,
    /// When the amounts were taken.
    pub taken_at: u64,
}

impl Grant {
    /// Creates the grant of a request that did not wait.
    pub const fn new(at: u64, cost: NonZeroU32) -> Self {
        Self { at, cost, taken_at: at }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    Granted(Grant),
    Queued(Ticket),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Waiting,
    Granted(Grant),
    Refused(Refusal),
}

/// The latest time at which a grant is useful, for each bound of a request. `u64::MAX` without that bound.
#[derive(Debug, Clone, Copy)]
pub struct Latest {
    pub max_wait: u64,
    pub deadline: u64,
}

impl Latest {
    /// Returns the bound that a request misses if its permits become available at `due`. If `grace` is above zero,
    /// `due <= now` means that the forecast is unknown. In this case, `grace` extends the longest wait.
    pub fn missed_by(&self, due: u64, now: u64, grace: u64) -> Option<Reason> {
        let unknown = grace > 0 && due <= now;
        let missed = |latest| if unknown { now >= latest } else { due > latest };
        let max_wait = if unknown { self.max_wait.saturating_add(grace) } else { self.max_wait };
        match (missed(max_wait), missed(self.deadline)) {
            (true, true) if self.deadline < max_wait => Some(Reason::Deadline),
            (true, _) => Some(Reason::MaxWait),
            (false, true) => Some(Reason::Deadline),
            (false, false) => None,
        }
    }

    /// Returns the latest time at which a grant is useful.
    pub fn last(&self, grace: u64) -> u64 {
        self.max_wait.saturating_add(grace).min(self.deadline)
    }

    pub fn is_bounded(&self) -> bool {
        self.last(0) < u64::MAX
    }
}

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// The number of free slots whose memory is kept.
const FEW: usize = 64;

/// The list of waiters that have not collected their permits, in the order of the grants. The lists before it belong to
/// the priorities, and are in the order of arrival.
pub(super) const GRANTED: usize = Priority::COUNT;

/// A queued request. The numbers of arrival are the order within a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(super) slot: u32,
    pub(super) arrival: u64,
}

impl Ticket {
    /// Returns a small number that no other queued request has. It is used again after this request has left.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) cost: NonZeroU32,
    pub(super) priority: Priority,
    pub(super) latest: Latest,
    /// Whether earlier permits of the request have expired before it was sent.
    pub(super) is_renewed: bool,
    /// Whether the request is already in flight. Only a renewed one can be.
    pub(super) is_in_flight: bool,
    /// Whether permits are granted to the waiter only when it is polled, because it was once polled too late, or because
    /// it needs those of another limiter as well.
    pub(super) is_late: bool,
    /// How long the waiter may hold up the waiters behind it after it was woken, in nanoseconds.
    pub(super) patience: u32,
    /// The amounts that the request takes from the quotas of other units.
    pub(super) amounts: Amounts,
}

impl Waiter {
    pub(super) fn rank(&self) -> usize {
        self.priority.rank()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    Free,
    Waiting,
    /// A late waiter was woken at this time, because its permits are available.
    Offered(u64),
    /// The permits were granted at this time, but not collected yet.
    Granted(u64),
    /// The permits expired before the waiter was polled. The waiter keeps its position, but the queue skips it.
    Absent,
    Refused(Refusal),
}

#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    pub(super) waiter: Waiter,
    pub(super) arrival: u64,
    previous: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The first free slot.
    free: u32,
    lists: [List; Priority::COUNT + 1],
    arrivals: u64,
    /// The number of slots in use.
    pub(super) used: u32,
}

impl Slots {
    pub(super) const fn new() -> Self {
        let empty = List { first: NONE, last: NONE };
        Self { slots: Vec::new(), free: NONE, lists: [empty; Priority::COUNT + 1], arrivals: 0, used: 0 }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(slot as usize)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }

    /// Returns the number of slots, with the free ones.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether no slot is in use.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.used == 0
    }

    /// Stores a new waiter, which is in no list yet.
    pub(super) fn add(&mut self, waiter: Waiter) -> Ticket {
        (self.arrivals, self.used) = (self.arrivals + 1, self.used + 1);
        let arrival = self.arrivals;
        let new = Slot { stage: Stage::Absent, waiter, arrival, previous: NONE, next: NONE };
        let slot = self.free;
        if let Some(free) = self.slots.get_mut(slot as usize) {
            self.free = free.next;
            *free = new;
            return Ticket { slot, arrival };
        }
        self.slots.push(new);
        Ticket { slot: u32::try_from(self.slots.len() - 1).unwrap_or(NONE), arrival }
    }

    /// Frees a slot that is in use and in no list. Frees the memory with the last one.
    pub(super) fn free(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.stage = Stage::Free;
            slot.next = std::mem::replace(&mut self.free, index);
            self.used -= 1;
        }
        if self.used == 0 && self.slots.len() > FEW {
            (self.slots, self.free) = (Vec::new(), NONE);
        }
    }

    pub(super) fn first(&self, list: usize) -> Option<(u32, &Slot)> {
        let first = self.lists[list].first;
        self.get(first).map(|slot| (first, slot))
    }

    /// Returns the slot behind another one in its list.
    pub(super) fn next(&self, slot: &Slot) -> Option<(u32, &Slot)> {
        self.get(slot.next).map(|next| (slot.next, next))
    }

    pub(super) fn iter(&self, list: usize) -> impl Iterator<Item = &Slot> {
        std::iter::successors(self.first(list), |(_, slot)| self.next(slot)).map(|(_, slot)| slot)
    }

    /// Returns whether a list has exactly one slot.
    pub(super) fn is_single(&self, list: usize) -> bool {
        let List { first, last } = self.lists[list];
        first == last && first != NONE
    }

    /// Adds a slot to a list. Only a waiter that returns has later arrivals behind it.
    pub(super) fn link(&mut self, index: u32, list: usize) {
        let arrival = |slot: u32| self.get(slot).map_or(0, |slot| slot.arrival);
        let own = arrival(index);
        let (mut previous, mut next) = (self.lists[list].last, NONE);
        if list != GRANTED && arrival(previous) > own {
            (previous, next) = (NONE, self.lists[list].first);
            while let Some(slot) = self.get(next).filter(|slot| slot.arrival < own) {
                (previous, next) = (next, slot.next);
            }
        }
        self.join(previous, index, list);
        self.join(index, next, list);
    }

    pub(super) fn unlink(&mut self, index: u32, list: usize) {
        if let Some((previous, next)) = self.get(index).map(|slot| (slot.previous, slot.next)) {
            self.join(previous, next, list);
        }
    }

    /// Makes two slots neighbours in a list. `NONE` is the end of the list.
    fn join(&mut self, previous: u32, next: u32, list: usize) {
        match self.slots.get_mut(previous as usize) {
            Some(slot) => slot.next = next,
            None => self.lists[list].first = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(slot) => slot.previous = previous,
            None => self.lists[list].last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_misses_the_earlier_of_its_longest_wait_and_its_deadline() {
        const END: u64 = u64::MAX;
        let (max_wait, deadline) = (Some(Reason::MaxWait), Some(Reason::Deadline));
        for (latest, due, now, grace, missed) in [
            ((END, END), END, 0, 0, None),
            ((5, END), 5, 0, 0, None),
            ((5, END), 6, 0, 0, max_wait),
            ((5, END), 5, 5, 0, None),
            ((END, 5), 5, 5, 0, None),
            ((END, 5), 6, 0, 0, deadline),
            ((7, 5), 6, 0, 0, deadline),
            ((7, 5), 8, 0, 0, deadline),
            ((5, 7), 8, 0, 0, max_wait),
            ((5, 5), 6, 0, 0, max_wait),
            // If the forecast is unknown, a request misses a bound as soon as the bound is reached.
            ((5, END), 5, 5, 3, None),
            ((5, END), 8, 8, 3, max_wait),
            ((END, 5), 5, 5, 3, deadline),
            ((5, END), 6, 5, 3, max_wait),
        ] {
            let bounds = Latest { max_wait: latest.0, deadline: latest.1 };
            assert_eq!(
                bounds.missed_by(due, now, grace),
                missed,
                "{latest:?}, due {due} at {now}, grace {grace}"
            );
        }
        assert_eq!(Latest { max_wait: 5, deadline: 9 }.last(3), 8);
        assert_eq!(Latest { max_wait: 5, deadline: 7 }.last(3), 7);
    }
}
