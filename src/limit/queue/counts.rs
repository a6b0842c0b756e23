//! The counts of granted and released permits and of refusals.

use super::{
    slots::{self, SLOTS},
    sync::{AtomicU64, Ordering},
};

/// The counts of one thread, or of all threads without a slot.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) granted: AtomicU64,
    /// The number of permits whose requests have ended.
    pub(super) released: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Tally {
    /// Adds `number` to a count. The caller must be the only thread that writes to this tally.
    #[inline]
    pub(super) fn add(&self, count: impl Fn(&Self) -> &AtomicU64, number: u64) {
        let count = count(self);
        count.store(count.load(Ordering::Relaxed).wrapping_add(number), Ordering::Release);
    }
}

/// Holds one tally for each [slot](slots). Only the thread with the slot writes to it, so a plain store suffices. A
/// read-modify-write operation would take as long as the rest of a grant.
#[derive(Debug, Default)]
pub(super) struct Stripes([Stripe; SLOTS]);

/// The alignment gives each tally its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Tally);

impl Stripes {
    /// Returns the tally of this thread, or `None` if the thread has no slot.
    #[inline]
    pub(super) fn own(&self) -> Option<&Tally> {
        self.0.get(slots::current()).map(|Stripe(tally)| tally)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Tally> {
        self.0.iter().map(|Stripe(tally)| tally)
    }
}
