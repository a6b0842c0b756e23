//! The word from which callers take the permits of a block without the limiter's lock.
//!
//! Only the holder of the lock opens and closes. The holder that closes gets the number of permits that are left, and
//! books the others at the present or at the end of the block, whichever is earlier. The clock is read after the word
//! is closed, so no permit is booked earlier than it was taken.

use super::sync::{AtomicU64, Ordering};
use crate::limit::core::Block;

/// Closed, or one of:
///
/// - a block: 15 bits of permits, then 48 bits of its end in units of 1.024 µs, which last nine years;
/// - the highest bit, and the time before which no permit is available, in nanoseconds.
#[derive(Debug)]
pub(super) struct BlockWord(AtomicU64);

const CLOSED: u64 = 0;
const EMPTY: u64 = 1 << 63;
const PERMIT: u64 = 1 << 48;
const UNIT: u32 = 10;

/// The result of an attempt to take permits without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    Taken,
    /// No permit is available before this time, and no request waits.
    NotBefore(u64),
    NeedsLock,
}

impl BlockWord {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(CLOSED))
    }

    /// Takes permits. The caller has read `now` before this call.
    #[inline]
    pub(super) fn take(&self, cost: u32, now: u64) -> Take {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & EMPTY != 0 {
                let due = word & !EMPTY;
                // More permits become available later than one.
                return if cost == 1 && now < due { Take::NotBefore(due) } else { Take::NeedsLock };
            }
            if word >> 48 < u64::from(cost) || now >= (word & (PERMIT - 1)) << UNIT {
                return Take::NeedsLock;
            }
            // Another block may replace the one that was read, even with an equal word. Its permits are as good.
            let rest = word - u64::from(cost) * PERMIT;
            match self.0.compare_exchange_weak(word, rest, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Take::Taken,
                Err(changed) => word = changed,
            }
        }
    }

    /// Opens a block. Called only under the lock, while the word is closed.
    pub(super) fn open(&self, block: &Block) {
        let end = (block.end >> UNIT).min(PERMIT - 1);
        self.0.swap((u64::from(block.permits) * PERMIT) | end, Ordering::AcqRel);
    }

    /// Refuses all requests for one permit until `due`. Called only under the lock, while the word is closed.
    pub(super) fn refuse_until(&self, due: u64) {
        self.0.swap(EMPTY | due.min(EMPTY - 1), Ordering::AcqRel);
    }

    /// Closes the word. Returns the number of permits that are left. Returns `None` if the word was closed. Called only
    /// under the lock.
    pub(super) fn close(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) == CLOSED {
            return None;
        }
        let word = self.0.swap(CLOSED, Ordering::AcqRel);
        Some(if word & EMPTY != 0 { 0 } else { (word >> 48) as u32 })
    }
}

#[cfg(all(test, not(outbound_loom)))]
mod tests {
    use super::*;

    #[test]
    fn block_grants_its_permits_until_its_end() {
        let word = BlockWord::new();
        assert_eq!((word.take(1, 0), word.close()), (Take::NeedsLock, None));
        word.open(&Block { permits: 5, end: 10_240 });
        assert_eq!(word.take(1, 10_239), Take::Taken);
        assert_eq!(word.take(1, 10_240), Take::NeedsLock);
        assert_eq!(
            (word.take(5, 0), word.take(4, 0), word.take(1, 0)),
            (Take::NeedsLock, Take::Taken, Take::NeedsLock)
        );
        assert_eq!((word.close(), word.close()), (Some(0), None));
    }

    #[test]
    fn refusal_states_the_exact_time_and_applies_to_one_permit() {
        let word = BlockWord::new();
        word.refuse_until(1_234_567);
        assert_eq!(word.take(1, 1_234_566), Take::NotBefore(1_234_567));
        assert_eq!((word.take(1, 1_234_567), word.take(2, 0)), (Take::NeedsLock, Take::NeedsLock));
        assert_eq!(word.close(), Some(0));
        word.refuse_until(u64::MAX);
        assert_eq!(word.take(1, 0), Take::NotBefore(EMPTY - 1));
    }
}
