//! The queued requests of each priority, in FIFO order.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, task::Waker};

use super::waiter::Waiter;
use crate::policy::{
    Priority,
    priority::{Heads, Shares, Turn},
};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) waker: Waker,
    pub(super) waiter: Arc<Waiter>,
    /// The time of the first wake-up since the waiter was last polled.
    pub(super) woken_at: Option<u64>,
}

/// Wakers to wake and to drop after the lock is released, because waking and dropping may run arbitrary code.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pub(super) wake: Vec<Waker>,
    pub(super) drop: Vec<Waker>,
}

/// The waiters of one priority.
#[derive(Debug, Default)]
pub(super) struct Class {
    /// In order of arrival. A tree allows removing a waiter from the middle.
    pub(super) entries: BTreeMap<u64, Entry>,
    /// The waiters that were woken and not polled in time. They keep their positions, but the queue skips them.
    absent: BTreeMap<u64, Entry>,
    /// The number of permits that other requests may take ahead of these waiters without delaying one beyond its bounds.
    /// `None` if it must be computed again.
    pub(super) spare: Option<u64>,
}

/// The waiter that is served next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: u64,
    pub(super) rank: usize,
    pub(super) cost: NonZeroU32,
    /// The number of permits that must remain for another priority.
    pub(super) reserve: u64,
}

impl Head {
    /// Returns the number of permits that must be available before this waiter is served.
    pub(super) fn needed(&self) -> u64 {
        u64::from(self.cost.get()).saturating_add(self.reserve)
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    pub(super) classes: [Class; Priority::COUNT],
    /// The number of permits that the waiters of each priority need, without the absent ones.
    pub(super) wanted: [u64; Priority::COUNT],
    pub(super) shares: Shares,
}

impl Waiters {
    /// Returns whether there are no waiters, or only absent ones.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wanted[0] | self.wanted[1] | self.wanted[2] == 0
    }

    /// Returns the number of waiters of the ranks up to `rank`, with the absent ones.
    pub(super) fn len(&self, rank: usize) -> usize {
        self.classes[..=rank].iter().map(|class| class.entries.len() + class.absent.len()).sum()
    }

    /// Returns whether this head is the only waiter of its priority and other priorities have waiters.
    pub(super) fn is_alone(&self, head: &Head) -> bool {
        self.only_rank().is_none() && self.classes[head.rank].entries.len() == 1
    }

    /// Returns whether the head was woken and not polled since.
    pub(super) fn is_woken(&self, head: &Head) -> bool {
        self.classes[head.rank].entries.get(&head.id).is_some_and(|entry| entry.woken_at.is_some())
    }

    /// Returns the number of permits that all waiters need together, without the absent ones.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.iter().sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.classes.iter().flat_map(|class| class.entries.values())
    }

    /// Returns the rank of the only priority with present waiters, or 0 if no waiter is present. Returns `None` if several
    /// priorities have waiters.
    pub(super) fn only_rank(&self) -> Option<usize> {
        match self.wanted {
            [_, 0, 0] => Some(0),
            [0, _, 0] => Some(1),
            [0, 0, _] => Some(2),
            _ => None,
        }
    }

    fn heads(&self) -> Heads {
        let cost = |class: &Class| class.entries.first_key_value().map(|(_, entry)| entry.waiter.cost);
        [cost(&self.classes[0]), cost(&self.classes[1]), cost(&self.classes[2])]
    }

    /// Returns the waiter that is served next. A request can take at most `largest` permits.
    pub(super) fn head(&self, largest: u32) -> Option<Head> {
        let turn = match self.only_rank() {
            Some(rank) => Turn { rank, reserve: 0 },
            None => self.shares.next(&self.heads(), largest.into())?,
        };
        let (&id, entry) = self.classes[turn.rank].entries.first_key_value()?;
        Some(Head { id, rank: turn.rank, cost: entry.waiter.cost, reserve: turn.reserve })
    }

    /// Returns the number of permits that must remain if a new request is served before all waiters. Returns `None` if
    /// a waiter is served first.
    pub(super) fn reserve_of_new(&self, rank: usize, cost: NonZeroU32, largest: u32) -> Option<u64> {
        self.shares.reserve_of_new(self.heads(), rank, cost, largest.into())
    }

    /// Records that a new request was served before all waiters.
    pub(super) fn grant_new(&mut self, rank: usize, cost: NonZeroU32) {
        self.shares.grant_new(self.heads(), rank, cost);
    }

    /// Removes the head, because it was granted its permits.
    pub(super) fn grant(&mut self, head: &Head) -> Option<Entry> {
        if self.only_rank().is_some() {
            self.shares.reset();
            return self.remove_from(head.rank, head.id);
        }
        let before = self.heads();
        let entry = self.remove_from(head.rank, head.id);
        self.shares.grant(head.rank, head.cost.get().into(), &before, &self.heads());
        entry
    }

    pub(super) fn insert(&mut self, waiter: &Arc<Waiter>, waker: Waker) {
        let entry = Entry { waker, waiter: Arc::clone(waiter), woken_at: None };
        self.insert_entry(entry);
    }

    fn insert_entry(&mut self, entry: Entry) {
        let (rank, id, cost) = (entry.waiter.rank, entry.waiter.id, entry.waiter.cost);
        self.wanted[rank] += u64::from(cost.get());
        self.classes[rank].entries.insert(id, entry);
    }

    /// Removes a waiter that was not granted its permits.
    pub(super) fn remove(&mut self, waiter: &Waiter) -> Option<Entry> {
        let absent = self.classes[waiter.rank].absent.remove(&waiter.id);
        absent.or_else(|| self.take_out(waiter.rank, waiter.id))
    }

    fn take_out(&mut self, rank: usize, id: u64) -> Option<Entry> {
        let entry = self.remove_from(rank, id)?;
        if self.classes[rank].entries.is_empty() {
            self.shares.forget(rank);
        }
        Some(entry)
    }

    fn remove_from(&mut self, rank: usize, id: u64) -> Option<Entry> {
        let class = &mut self.classes[rank];
        let entry = class.entries.remove(&id)?;
        if class.entries.is_empty() {
            class.spare = None;
        }
        self.wanted[rank] -= u64::from(entry.waiter.cost.get());
        Some(entry)
    }

    /// Returns whether no other waiter of its priority is behind this waiter.
    pub(super) fn is_last(&self, waiter: &Waiter) -> bool {
        self.classes[waiter.rank].entries.last_key_value().is_some_and(|(&id, _)| id == waiter.id)
    }

    pub(super) fn get_mut(&mut self, waiter: &Waiter) -> Option<&mut Entry> {
        self.classes[waiter.rank].entries.get_mut(&waiter.id)
    }

    /// Moves a waiter to the absent ones, so that the queue serves the waiters behind it.
    pub(super) fn set_absent(&mut self, rank: usize, id: u64) {
        if let Some(entry) = self.take_out(rank, id) {
            self.classes[rank].absent.insert(id, entry);
        }
    }

    pub(super) fn is_absent(&self, waiter: &Waiter) -> bool {
        self.classes[waiter.rank].absent.contains_key(&waiter.id)
    }

    /// Puts an absent waiter back at its position.
    pub(super) fn return_absent(&mut self, waiter: &Waiter) {
        if let Some(entry) = self.classes[waiter.rank].absent.remove(&waiter.id) {
            self.insert_entry(entry);
        }
    }
}
