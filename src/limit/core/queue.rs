//! The queued requests, in FIFO order within each priority.

use std::collections::VecDeque;

use super::{
    Stage, Ticket,
    amounts::QueuedAmounts,
    waiters::{GRANTED, Slots, Waiter},
};
use crate::{
    error::Refusal,
    policy::{
        Amounts, Priority,
        priority::{Heads, Shares, Turn},
    },
};

/// The waiter that is served next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) slot: u32,
    pub(super) waiter: Waiter,
    /// The number of permits that must remain for another priority.
    pub(super) reserve: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub(super) slots: Slots,
    /// The number of waiters of each priority, with the absent ones.
    queued: [usize; Priority::COUNT],
    /// The number of permits that the waiters of each priority need, without the absent ones.
    pub(super) wanted: [u64; Priority::COUNT],
    pub(super) shares: Shares,
    /// The number of waiters with a bound, without the absent ones.
    pub(super) bounded: usize,
    /// Whether a request has waited that keeps its turn while it waits for another limiter.
    pub(super) has_joint: bool,
    /// The number of renewed waiters, without the absent ones.
    pub(super) renewed: usize,
    /// The number of waiters that are in flight, without the absent ones.
    pub(super) in_flight: usize,
    /// `None` until a request with amounts waits.
    pub(super) amounts: Option<Box<QueuedAmounts>>,
    woken: VecDeque<Ticket>,
    /// The highest cost of any request since the queue was last empty.
    pub(super) costliest: u64,
    /// When to check the bounds of waiters that others have overtaken.
    pub(super) recheck_at: Option<u64>,
}

/// The queue of a limiter that no request has waited for.
pub(super) static EMPTY: Queue = Queue::new();

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            slots: Slots::new(),
            queued: [0; Priority::COUNT],
            wanted: [0; Priority::COUNT],
            shares: Shares::new(),
            bounded: 0,
            has_joint: false,
            renewed: 0,
            in_flight: 0,
            amounts: None,
            woken: VecDeque::new(),
            costliest: 1,
            recheck_at: None,
        }
    }

    /// Returns whether there are no waiters, or only absent ones.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wanted == [0; Priority::COUNT]
    }

    /// Returns whether no request waits, and none is to be woken or to collect its permits.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.woken.is_empty() && self.slots.is_unused()
    }

    /// Returns whether this waiter is the first of its priority.
    pub(super) fn is_first(&self, ticket: Ticket) -> bool {
        let rank = self.slots.get(ticket.slot).map(|slot| slot.waiter.rank());
        rank.and_then(|rank| self.slots.first(rank)).is_some_and(|(first, _)| first == ticket.slot)
    }

    /// Returns the number of waiters of the ranks up to `rank`, with the absent ones.
    pub(super) fn len(&self, rank: usize) -> usize {
        self.queued.iter().take(rank + 1).sum()
    }

    /// Returns the number of permits that all waiters need together, without the absent ones.
    pub(super) fn total(&self) -> u64 {
        self.wanted.iter().sum()
    }

    /// Returns the rank of the only priority with waiters. Returns `None` if several priorities have waiters.
    pub(super) fn only_rank(&self) -> Option<usize> {
        match self.wanted {
            [_, 0, 0] => Some(0),
            [0, _, 0] => Some(1),
            [0, 0, _] => Some(2),
            _ => None,
        }
    }

    /// Returns whether this head is the only waiter of its priority and other priorities have waiters.
    pub(super) fn is_alone(&self, head: &Head) -> bool {
        self.only_rank().is_none() && self.slots.is_single(head.waiter.rank())
    }

    pub(super) fn heads(&self) -> Heads {
        let cost = |rank: usize| self.slots.first(rank).map(|(_, slot)| slot.waiter.cost);
        [cost(0), cost(1), cost(2)]
    }

    /// Returns the waiter that is served next. A request can take at most `largest` permits.
    #[inline]
    pub(super) fn head(&self, largest: u32) -> Option<Head> {
        let turn = match self.only_rank() {
            Some(rank) => Turn { rank, reserve: 0 },
            None => self.shares.next(&self.heads(), largest.into())?,
        };
        let (slot, found) = self.slots.first(turn.rank)?;
        Some(Head { slot, waiter: found.waiter, reserve: turn.reserve })
    }

    /// Returns the first renewed waiter, or the first that is already in flight.
    pub(super) fn head_renewed(&self, must_be_in_flight: bool) -> Option<Head> {
        let is_next = |waiter: &Waiter| waiter.is_in_flight || waiter.is_renewed && !must_be_in_flight;
        (0..Priority::COUNT).find_map(|rank| {
            let mut next = self.slots.first(rank);
            while let Some((_, found)) = next.filter(|(_, found)| !is_next(&found.waiter)) {
                next = self.slots.next(found);
            }
            next.map(|(slot, found)| Head { slot, waiter: found.waiter, reserve: 0 })
        })
    }

    /// Gives the head its permits and wakes it.
    pub(super) fn grant(&mut self, head: &Head, now: u64) {
        let (cost, rank) = (head.waiter.cost, head.waiter.rank());
        if self.only_rank().is_some() {
            self.shares.reset();
            self.remove(head.slot);
        } else {
            let before = self.heads();
            self.remove(head.slot);
            self.shares.grant(rank, cost.get().into(), &before, &self.heads());
        }
        self.settle(head.slot, Stage::Granted(now));
        self.slots.link(head.slot, GRANTED);
    }

    /// Returns when a late waiter was woken.
    pub(super) fn offered_at(&self, head: &Head) -> Option<u64> {
        match self.slots.get(head.slot)?.stage {
            Stage::Offered(at) => Some(at),
            _ => None,
        }
    }

    /// Records that a late waiter was polled, and still waits for the permits of another limiter.
    pub(super) fn keep_turn(&mut self, slot: u32, now: u64) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.stage = Stage::Offered(now);
        }
    }

    /// Records that a late waiter was polled, and that its permits are no longer available.
    pub(super) fn withdraw_offer(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot).filter(|slot| matches!(slot.stage, Stage::Offered(_))) {
            slot.stage = Stage::Waiting;
        }
    }

    /// Sets a late waiter aside that was woken and not polled.
    pub(super) fn skip(&mut self, slot: u32) {
        if let Some(rank) = self.remove(slot) {
            self.queued[rank] += 1;
            if self.wanted[rank] == 0 {
                self.shares.forget(rank);
            }
        }
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.stage = Stage::Absent;
        }
    }

    /// Refuses a waiter and wakes it.
    pub(super) fn refuse(&mut self, slot: u32, refusal: Refusal) {
        self.take_out(slot);
        self.settle(slot, Stage::Refused(refusal));
    }

    /// Wakes a waiter that was decided, or a [late](Waiter::is_late) one whose permits are available.
    pub(super) fn settle(&mut self, index: u32, stage: Stage) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.stage = stage;
        }
        self.woken.extend(self.ticket(index));
    }

    pub(super) fn ticket(&self, slot: u32) -> Option<Ticket> {
        self.slots.get(slot).map(|found| Ticket { slot, arrival: found.arrival })
    }

    /// Queues a new request behind all others of its priority.
    pub(super) fn insert(&mut self, waiter: Waiter) -> Ticket {
        let ticket = self.slots.add(waiter);
        self.queued[waiter.rank()] += 1;
        self.enter(ticket.slot);
        ticket
    }

    /// Puts an [absent](Stage::Absent) waiter back at its position.
    pub(super) fn enter(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.stage = Stage::Waiting;
        let (waiter, rank) = (slot.waiter, slot.waiter.rank());
        self.wanted[rank] += u64::from(waiter.cost.get());
        self.bounded += usize::from(waiter.latest.is_bounded());
        self.renewed += usize::from(waiter.is_renewed);
        self.in_flight += usize::from(waiter.is_in_flight);
        self.amounts.iter_mut().for_each(|amounts| amounts.enter(&waiter.amounts, rank));
        self.slots.link(index, rank);
    }

    /// Returns the waiter with the uncollected permits that were granted first: its slot, and the time of the grant.
    pub(super) fn uncollected(&self) -> Option<(u32, Waiter, u64)> {
        let (index, slot) = self.slots.first(GRANTED)?;
        match slot.stage {
            Stage::Granted(at) => Some((index, slot.waiter, at)),
            _ => None,
        }
    }

    /// Sets a waiter aside whose permits have expired.
    pub(super) fn expire(&mut self, index: u32) {
        self.slots.unlink(index, GRANTED);
        if let Some(slot) = self.slots.get_mut(index) {
            slot.stage = Stage::Absent;
            slot.waiter.is_late = true;
            self.queued[slot.waiter.rank()] += 1;
        }
    }

    /// Ends a ticket and frees its slot.
    pub(super) fn release(&mut self, index: u32) {
        let Some(slot) = self.slots.get(index) else { return };
        match slot.stage {
            Stage::Waiting | Stage::Offered(_) => self.take_out(index),
            Stage::Absent => self.queued[slot.waiter.rank()] -= 1,
            Stage::Granted(_) => self.slots.unlink(index, GRANTED),
            Stage::Refused(_) => {}
            Stage::Free => return,
        }
        self.slots.free(index);
        if self.slots.is_unused() {
            self.amounts = None;
        }
    }

    /// Returns the slot, the stage and the request of a ticket, unless the ticket has ended.
    pub(super) fn find(&self, ticket: Ticket) -> Option<(u32, &Stage, Waiter)> {
        let slot = self.slots.get(ticket.slot)?;
        let is_same = slot.arrival == ticket.arrival && slot.stage != Stage::Free;
        is_same.then_some((ticket.slot, &slot.stage, slot.waiter))
    }

    pub(super) fn pop_woken(&mut self) -> Option<Ticket> {
        self.woken.pop_front()
    }

    /// Returns the waiters of all priorities.
    pub(super) fn iter(&self) -> impl Iterator<Item = Waiter> {
        (0..Priority::COUNT).flat_map(|rank| self.slots.iter(rank)).map(|slot| slot.waiter)
    }

    /// Returns the amounts of a waiter, up to the limits.
    pub(super) fn counted(&self, amounts: &Amounts) -> Amounts {
        self.amounts.as_ref().map_or(Amounts::NONE, |queued| queued.counted(amounts))
    }

    /// Removes a waiter that was not granted its permits.
    fn take_out(&mut self, index: u32) {
        if let Some(rank) = self.remove(index).filter(|rank| self.wanted[*rank] == 0) {
            self.shares.forget(rank);
        }
    }

    /// Removes a waiter from the list of its priority, and returns its rank.
    fn remove(&mut self, index: u32) -> Option<usize> {
        let waiter = self.slots.get(index)?.waiter;
        let rank = waiter.rank();
        self.queued[rank] -= 1;
        self.wanted[rank] -= u64::from(waiter.cost.get());
        self.bounded -= usize::from(waiter.latest.is_bounded());
        self.renewed -= usize::from(waiter.is_renewed);
        self.in_flight -= usize::from(waiter.is_in_flight);
        self.amounts.iter_mut().for_each(|amounts| amounts.leave(&waiter.amounts, rank));
        self.slots.unlink(index, rank);
        Some(rank)
    }
}
