//! The amounts that the waiters take.

use crate::policy::{Amounts, Priority, Totals};

/// The amounts of the waiters.
#[derive(Debug, Clone)]
pub(super) struct QueuedAmounts {
    by_slot: Vec<Amounts>,
    /// The lowest limit of each unit. An amount above it counts as the limit in the sums.
    limits: Amounts,
    wanted: [Totals; Priority::COUNT],
}

impl QueuedAmounts {
    pub(super) fn new(limits: Amounts) -> Self {
        Self { by_slot: Vec::new(), limits, wanted: [Totals::NONE; Priority::COUNT] }
    }

    /// Changes the limits. All waiters must [enter](Self::enter) again.
    pub(super) fn begin(&mut self, limits: Amounts) {
        (self.limits, self.wanted) = (limits, [Totals::NONE; Priority::COUNT]);
    }

    /// Returns the amounts of the waiter in this slot.
    pub(super) fn of(&self, slot: u32) -> Amounts {
        self.by_slot.get(slot as usize).copied().unwrap_or(Amounts::NONE)
    }

    /// Returns the amounts of the waiter in this slot, up to the limits.
    pub(super) fn counted(&self, slot: u32) -> Amounts {
        self.of(slot).zip(&self.limits, u32::min)
    }

    pub(super) fn set(&mut self, slot: u32, amounts: Amounts) {
        let slot = slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, Amounts::NONE);
        }
        if let Some(own) = self.by_slot.get_mut(slot) {
            *own = amounts;
        }
    }

    /// Adds the amounts of the waiter in this slot to the sums.
    pub(super) fn enter(&mut self, slot: u32, rank: usize) {
        let counted = self.counted(slot);
        self.wanted[rank].add(&counted);
    }

    pub(super) fn leave(&mut self, slot: u32, rank: usize) {
        let counted = self.counted(slot);
        self.wanted[rank].remove(&counted);
    }

    /// Returns the amounts of all waiters of this rank.
    pub(super) fn of_rank(&self, rank: usize) -> Totals {
        self.wanted[rank]
    }

    /// Returns the amounts of all waiters of a higher priority than that of `rank`.
    pub(super) fn higher(&self, rank: usize) -> Totals {
        self.wanted.iter().take(rank).fold(Totals::NONE, |sum, own| sum.plus(own))
    }
}
