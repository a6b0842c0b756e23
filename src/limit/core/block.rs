//! Blocks of permits that callers take without the limiter's lock.
//!
//! A block holds permits that are available when it opens. They are booked when it closes, or at its end if that is
//! earlier. This is later than the callers took them, which is safe for every window.

use crate::policy::{Quota, nanos};

/// Opening and closing a smaller block takes longer than locking for each of its permits.
pub const SMALLEST: u64 = 6;

/// The largest block, whose permits fit into 16 bits of a word.
pub const LARGEST: u64 = (1 << 15) - 1;

/// A block lasts for this part of the window and its margin. Late bookings then lower the rate by at most 0.25 %.
const PARTS: u64 = 256;

/// Permits that callers may take until `end`, each for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub permits: u32,
    pub end: u64,
}

#[derive(Debug)]
pub(super) struct Blocks {
    /// How long a block lasts, in nanoseconds. Zero without a quota, so that no block opens.
    length: u64,
    /// The time of the last attempt to open a block.
    asked_at: u64,
    open: Option<Block>,
}

impl Blocks {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        let length = |quota: &Quota| nanos(quota.window().saturating_add(quota.margin())) / PARTS;
        Self { length: quotas.iter().map(length).min().unwrap_or(0), asked_at: 0, open: None }
    }

    /// Opens a block with at most half of the free permits. Half of them remain, because a block is booked late: a
    /// caller below the rate would otherwise find no permits.
    ///
    /// Opens a block only if the last attempt was at most a quarter of a block ago. A limiter in rare use would
    /// otherwise only open and close blocks.
    pub(super) fn open(&mut self, free: impl FnOnce() -> u64, now: u64) -> Option<Block> {
        let since = now.saturating_sub(self.asked_at);
        self.asked_at = now;
        if since >= self.length / 4 {
            return None;
        }
        let permits = u32::try_from((free() / 2).min(LARGEST)).ok()?;
        let block = Block { permits, end: now.saturating_add(self.length) };
        self.open = (u64::from(permits) >= SMALLEST).then_some(block);
        self.open
    }

    /// Closes the block, of which `left` permits are left. Returns how many to book, and the time of the booking.
    pub(super) fn close(&mut self, left: u32, at: u64) -> Option<(u32, u64)> {
        let block = self.open.take()?;
        Some((block.permits.saturating_sub(left), at.min(block.end))).filter(|(used, _)| *used > 0)
    }
}
