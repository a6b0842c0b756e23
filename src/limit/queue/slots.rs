//! Assigns slots to threads. No two running threads have the same slot.
//!
//! There are 16 slots. While all of them are in use, a further thread gets none and counts in the limiter's shared tally,
//! which is slower.

use std::{
    cell::Cell,
    sync::{Mutex, PoisonError},
};

use super::sync::thread_local;

/// The number of slots. The loom tests run two threads.
pub(super) const SLOTS: usize = if cfg!(outbound_loom) { 2 } else { 16 };

/// The thread has no slot.
const NONE: usize = SLOTS;

/// The thread has not requested a slot yet.
const UNKNOWN: usize = usize::MAX;

/// The slots in use, one bit for each. A thread returns its slot under the lock, so the next thread with the slot sees
/// everything that the earlier one wrote.
struct Slots(Mutex<u32>);

static PROCESS: Slots = Slots(Mutex::new(0));

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
    static LEASE: Lease = PROCESS.lease();
}

/// Returns the slot of this thread, or [`SLOTS`] if all slots were in use.
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

impl Slots {
    fn lease(&'static self) -> Lease {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (taken.trailing_ones() as usize).min(NONE);
        if slot < NONE {
            *taken |= 1 << slot;
        }
        Lease { slots: self, slot }
    }
}

/// Reserves a slot until the thread ends.
struct Lease {
    slots: &'static Slots,
    slot: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A later destructor of this thread must not use the slot.
        _ = SLOT.try_with(|current| current.set(NONE));
        if self.slot < NONE {
            *self.slots.0.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.slot);
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
        let mut slots: Vec<_> = thread::scope(|scope| {
            let slot = || {
                let slot = current();
                started.wait();
                slot
            };
            let threads: Vec<_> = (0..2 * SLOTS).map(|_| scope.spawn(slot)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|slot| *slot != NONE).collect()
        });
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "{slots:?}");
    }

    #[test]
    fn each_lease_has_its_own_slot_until_it_ends() {
        static OWN: Slots = Slots(Mutex::new(0));
        let slots = |leases: &[Lease]| leases.iter().map(|lease| lease.slot).collect::<Vec<_>>();
        // Leases of another thread, because their end removes the slot of the thread.
        thread::spawn(move || {
            let mut leases: Vec<_> = (0..SLOTS + 2).map(|_| OWN.lease()).collect();
            assert_eq!(slots(&leases), (0..SLOTS).chain([NONE, NONE]).collect::<Vec<_>>());
            drop(leases.drain(3..5));
            leases.extend([OWN.lease(), OWN.lease(), OWN.lease()]);
            assert_eq!(slots(&leases)[SLOTS..], [3, 4, NONE]);
        })
        .join()
        .unwrap();
    }
}
