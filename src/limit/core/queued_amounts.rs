//! The sums of the amounts that the waiters need.

use crate::policy::{Amounts, Priority, Totals};

/// The sums of the amounts of the waiters.
#[derive(Debug, Clone)]
pub(super) struct QueuedAmounts {
    /// The lowest limit of each unit. An amount above it counts as the limit in the sums.
    limits: Amounts,
    wanted: [Totals; Priority::COUNT],
}

impl QueuedAmounts {
    pub(super) fn new(limits: Amounts) -> Self {
        Self { limits, wanted: [Totals::NONE; Priority::COUNT] }
    }

    /// Changes the limits. All waiters must [enter](Self::enter) again.
    pub(super) fn begin(&mut self, limits: Amounts) {
        (self.limits, self.wanted) = (limits, [Totals::NONE; Priority::COUNT]);
    }

    /// Returns the amounts of a waiter, up to the limits.
    pub(super) fn counted(&self, amounts: &Amounts) -> Amounts {
        amounts.zip(&self.limits, u32::min)
    }

    /// Adds the amounts of a waiter to the sums.
    pub(super) fn enter(&mut self, amounts: &Amounts, rank: usize) {
        let counted = self.counted(amounts);
        self.wanted[rank].add(&counted);
    }

    pub(super) fn leave(&mut self, amounts: &Amounts, rank: usize) {
        let counted = self.counted(amounts);
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

/// Returns the amounts before those of a request, which gets its permits with the last of `total` permits. `needed` of
/// these permits belong to its rank and the higher ones. A lower priority with a share is served before some of the
/// higher ones, whose amounts then do not count.
pub(super) fn ahead(total: u64, needed: u64, of_rank: Totals, higher: Totals) -> Totals {
    if total < needed { of_rank } else { higher.plus(&of_rank) }
}
