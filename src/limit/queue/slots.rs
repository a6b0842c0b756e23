//! Gives each thread a slot, whose number is unique among the running threads.

use std::{
    cell::Cell,
    sync::{Mutex, PoisonError},
};

use super::sync::thread_local;

/// The number of slots. Further threads have no slot. The loom tests run two threads.
pub(super) const SLOTS: usize = if cfg!(outbound_loom) { 2 } else { 16 };

/// The thread has no slot.
const NONE: usize = SLOTS;

/// The thread has not asked for a slot yet.
const UNKNOWN: usize = usize::MAX;

/// The slots in use, one bit for each. A thread returns its slot under this lock, so the next thread with the slot sees
/// everything that the earlier one wrote.
static TAKEN: Mutex<u32> = Mutex::new(0);

#[cfg(not(outbound_loom))]
thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(UNKNOWN) };
}

#[cfg(outbound_loom)]
thread_local! {
    static SLOT: Cell<usize> = Cell::new(UNKNOWN);
}

// Separate from `SLOT`, because a thread-local value without a destructor is faster to read.
thread_local! {
    static LEASE: Lease = Lease::new();
}

/// Returns the slot of this thread, or a number of at least [`SLOTS`].
#[inline]
pub(super) fn current() -> usize {
    match SLOT.with(Cell::get) {
        UNKNOWN => assign(),
        slot => slot,
    }
}

#[cold]
fn assign() -> usize {
    // The lease no longer exists while the thread destroys its thread-local values.
    let slot = LEASE.try_with(|lease| lease.slot).unwrap_or(NONE);
    SLOT.with(|current| current.set(slot));
    slot
}

/// The use of a slot until the thread ends.
struct Lease {
    slot: usize,
}

impl Lease {
    fn new() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (taken.trailing_ones() as usize).min(NONE);
        if slot < NONE {
            *taken |= 1 << slot;
        }
        Self { slot }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A later destructor of this thread must not use the slot.
        _ = SLOT.try_with(|current| current.set(NONE));
        if self.slot < NONE {
            *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.slot);
        }
    }
}

#[cfg(all(test, not(outbound_loom)))]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn running_threads_have_different_slots() {
        let started = Barrier::new(2 * SLOTS);
        let slots: Vec<_> = thread::scope(|scope| {
            let slot = || {
                let slot = current();
                started.wait();
                slot
            };
            let threads: Vec<_> = (0..2 * SLOTS).map(|_| scope.spawn(slot)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|slot| *slot < SLOTS).collect()
        });
        let mut unique = slots.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), slots.len());
        assert!(!slots.is_empty());
    }

    #[test]
    fn ended_threads_return_their_slots() {
        for _ in 0..10 * SLOTS {
            thread::spawn(current).join().unwrap();
        }
        // Threads of other tests may use some slots, but not all of them.
        assert!((0..100).any(|_| thread::spawn(current).join().unwrap() < SLOTS));
    }
}
