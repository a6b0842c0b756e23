//! Whether an attempt has got past the limiter that stands below the layer that made it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Call;

/// The number of the attempt that is watched, and in the two lowest bits what became of it; 0 where none is.
#[derive(Default)]
pub(super) struct Passage(AtomicU64);

const HELD: u64 = 1;
const PASSED: u64 = 2;

fn watched(number: u32) -> u64 {
    u64::from(number) << 2
}

impl Passage {
    /// Another attempt begins, of this number; none is watched where it is none.
    pub(super) fn watch(&self, number: Option<u32>) {
        self.0.store(number.map_or(0, watched), Ordering::Release);
    }

    fn mark(&self, mark: u64) {
        // Few attempts are watched, and only to look costs little.
        if self.0.load(Ordering::Acquire) != 0 {
            self.0.fetch_or(mark, Ordering::AcqRel);
        }
    }
}

impl Call {
    /// A limiter has the request, and has not let it through.
    pub(crate) fn hold(&self) {
        self.shared.passage.mark(HELD);
    }

    /// The limiter lets it through. What waits for another one further in counts as gone all the same: of two copies one
    /// may have been sent.
    pub(crate) fn let_through(&self) {
        self.shared.passage.mark(PASSED);
    }

    /// Whether a limiter holds the attempt of this number, and none has let it through.
    pub(crate) fn is_held(&self, number: u32) -> bool {
        self.shared.passage.0.load(Ordering::Acquire) == watched(number) | HELD
    }
}
