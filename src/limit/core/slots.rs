//! The storage of waiters: slots that are linked into lists. Adding and removing a waiter takes constant time.

use std::num::NonZeroU32;

#[cfg(any(test, feature = "test-util"))]
use super::Core;
use super::latest::Latest;
use crate::{
    error::Refusal,
    policy::{Amounts, Priority},
};

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

/// The state that the simulation of the test kit reads.
#[cfg(any(test, feature = "test-util"))]
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
