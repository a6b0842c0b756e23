//! The counts of granted and released permits.

use super::sync::AtomicU64;

/// The permits of a queue. A grant and its end change only these counts and the arrival time of the bucket.
#[derive(Debug)]
pub(in crate::limit) struct Counts {
    /// The number of granted permits, with the flags in the highest bits, so that one atomic operation counts a grant
    /// and reads the flags. Without a shared bucket, it changes only under the lock.
    pub(super) tally: AtomicU64,
    /// The number of permits whose requests have ended.
    pub(super) released: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        Self { tally: AtomicU64::new(0), released: AtomicU64::new(0) }
    }
}
