//! Whether a limiter below the layer that made an attempt still has it.

#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::CallContext;

/// The number of the attempt that is watched, and in the two lowest bits what became of it; 0 where none is.
#[derive(Default)]
pub(super) struct Passage(AtomicU64);

const HELD: u64 = 1;
const GONE: u64 = 2;

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

impl CallContext {
    /// A limiter has the request, from now on.
    pub(crate) fn hold(&self) {
        self.shared.passage.mark(HELD);
    }

    /// And has it no more: it let it through, refused it or was given up. What another one holds counts as gone all the
    /// same: of two copies one may have been sent, and so may what was refused, by another way.
    pub(crate) fn let_go(&self) {
        self.shared.passage.mark(GONE);
    }

    /// Whether a limiter holds the attempt of this number, and none has let it go.
    pub(crate) fn is_held(&self, number: u32) -> bool {
        self.shared.passage.0.load(Ordering::Acquire) == watched(number) | HELD
    }
}
