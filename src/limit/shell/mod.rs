//! The only code of the limiter with a lock, wakers and timers. It passes the time and the events to the
//! [core](super::core), and wakes the callers whose requests the core has decided.

pub(super) mod acquire;
pub(super) mod driver;
pub(super) mod joint;
#[cfg(all(test, outbound_loom))]
mod loom_tests;
mod outcome;

// With loom, the models run every interleaving of the threads:
// `RUSTFLAGS="--cfg outbound_loom" cargo test --release --lib limit::shell::loom_tests`.
#[cfg(not(outbound_loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, Ordering},
};
use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
};

#[cfg(outbound_loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use self::{
    driver::{Clock, Waiting, Wakes},
    outcome::Refusals,
};
use super::{
    core::{Block, Core, CoreSettings, PermitSource, Rule, has_quota},
    snapshot::Snapshot,
};
use crate::{
    error::{Reason, Refusal},
    policy::{Quota, nanos},
};

/// The state that all clones of a limiter share.
///
/// Each grant without the lock reads `setup` and writes `block`. The distance between them puts them into different
/// cache lines, so that a read does not wait for the writes of other threads.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shared {
    block: BlockWord,
    /// The permits whose requests have ended without the lock.
    released: AtomicU64,
    /// The requests that were refused without the lock.
    refused: Refusals,
    /// `None` until a request needs the lock.
    state: Mutex<Option<Box<State>>>,
    _distance: [u64; 3],
    pub(super) setup: Arc<Setup>,
    /// Which responses the limiter applies: see [`flags`].
    flags: AtomicU8,
}

/// The parts of a limiter that never change. The keys of a `Keyed` with the same quotas share one setup.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) quotas: Box<[Quota]>,
    pub(crate) settings: CoreSettings,
}

impl Setup {
    pub(crate) fn new(quotas: Box<[Quota]>, rule: Rule) -> Self {
        Self { clock: Clock::tokio(), quotas, settings: CoreSettings::new(rule) }
    }

    /// Creates the core when a request first needs the lock, so that an unused key takes little memory.
    fn core(&self) -> Core {
        Core::new(&self.quotas, self.settings)
    }

    /// Returns whether the limiter counts the requests in flight.
    #[inline]
    fn counts(&self) -> bool {
        self.settings.max_in_flight.is_some()
    }

    /// Returns whether a limiter with this setup can use the other one. A limiter that starts with fewer permits
    /// refills them from its own start.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.quotas == other.quotas
            && self.settings == other.settings
            && self.settings.initial_burst.is_none()
            && self.clock.has_same_source(&other.clock)
    }
}

/// Which responses a limiter applies.
mod flags {
    /// The remaining permits of accepted responses apply.
    pub(super) const READS_REMAINING: u8 = 1;
    /// Every response applies, because the limiter waits for an accepted one, or because it learns and waits for a
    /// probe, or has learned another rate.
    pub(super) const READS_ALL: u8 = 2;
    /// The limiter learns from responses.
    pub(super) const LEARNS: u8 = 4;
    /// The limiter counts the requests in flight.
    pub(super) const COUNTS: u8 = 8;

    pub(super) fn of(reads_remaining: bool, learns: bool, counts: bool, reads_all: bool) -> u8 {
        let flags =
            [(reads_remaining, READS_REMAINING), (learns, LEARNS), (counts, COUNTS), (reads_all, READS_ALL)];
        flags.iter().map(|(is_set, flag)| if *is_set { *flag } else { 0 }).sum()
    }
}

/// How long a driver may remain after the last waiter has left the queue: 1 s in nanoseconds.
const LINGER: u64 = 1_000_000_000;

/// The state under the lock.
#[derive(Debug)]
struct State {
    core: Core,
    /// The released permits that were passed to the core.
    released: u64,
    /// The latest time that was passed to the core. Times never decrease.
    now: u64,
    /// `None` until a request waits.
    waiting: Option<Box<Waiting>>,
}

type Guard<'a> = MutexGuard<'a, Option<Box<State>>>;

impl Shared {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let learns = setup.settings.rule == Rule::Learned;
        let reads_remaining = !learns && (setup.settings.obeys_remaining || !has_quota(&setup.quotas));
        let flags = flags::of(reads_remaining, learns, setup.counts(), learns);
        Self {
            block: BlockWord::new(),
            released: AtomicU64::new(0),
            refused: Refusals::default(),
            state: Mutex::new(None),
            _distance: [0; 3],
            flags: AtomicU8::new(flags),
            setup,
        }
    }

    /// Creates a limiter whose permits come from a store.
    pub(super) fn from_source(setup: Arc<Setup>, core: Core) -> Self {
        let shared = Self::new(setup);
        *shared.lock() = Some(Box::new(State::new(core)));
        shared
    }

    /// Takes the store, so that a limiter with other settings uses it.
    pub(super) fn take_source(&self) -> Option<Box<dyn PermitSource>> {
        let mut guard = self.lock();
        let source = guard.as_deref_mut()?.core.take_source();
        if source.is_some() {
            *guard = None;
        }
        source
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.locked(|core, now| {
            core.advance(now);
            core.snapshot_with(now, |at| self.setup.clock.timer(at))
        });
        snapshot.refused += self.refused.sum();
        snapshot
    }

    /// Returns whether the limiter is in the state of a new one.
    pub(super) fn is_idle(&self) -> bool {
        self.is_unused() || self.locked(|core, now| core.is_idle(now))
    }

    /// Returns whether no request has needed the lock.
    pub(super) fn is_unused(&self) -> bool {
        self.lock().is_none()
    }

    /// Calls `work` with the core and the present.
    pub(super) fn locked<T>(&self, work: impl FnOnce(&mut Core, u64) -> T) -> T {
        let mut guard = self.lock();
        let (state, now) = self.enter(&mut guard, None);
        let outcome = work(&mut state.core, now);
        self.unlock(guard, true);
        outcome
    }

    fn lock(&self) -> Guard<'_> {
        // Ignores poisoning: only the code of a user's waker or source can panic, and the core stays consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the block and books its permits. Returns the present. `read` is an earlier reading of the clock.
    fn enter<'a>(&self, guard: &'a mut Guard<'_>, read: Option<u64>) -> (&'a mut State, u64) {
        let state = guard.get_or_insert_with(|| Box::new(State::new(self.setup.core())));
        // The released permits are read before the block is closed, because each was granted earlier.
        let released = self.released.load(Ordering::Acquire);
        state.core.released(released.wrapping_sub(std::mem::replace(&mut state.released, released)));
        let left = self.block.close();
        // A block is booked at a time that is read after it was closed.
        let read = read.filter(|_| left.is_none()).unwrap_or_else(|| self.setup.clock.now());
        state.now = state.now.max(read);
        if let Some(left) = left {
            state.core.close_block(left, state.now.saturating_add(self.setup.clock.skew()));
        }
        let now = state.now;
        (state, now)
    }

    /// Unlocks after a refusal. If no request waits, the next ones are refused without the lock.
    fn unlock_refused(&self, mut guard: Guard<'_>, cost: NonZeroU32, refusal: &Refusal) {
        // The next refusals name no quota of the server.
        let is_plain =
            cost == NonZeroU32::MIN && refusal.reason() == Reason::MaxWait && refusal.quota().is_none();
        let wait = refusal.wait().filter(|_| is_plain);
        if let (Some(state), Some(wait)) = (guard.as_deref_mut(), wait) {
            if state.core.refuses_all() {
                return self.block.refuse_until(state.now.saturating_add(nanos(wait)));
            }
        }
        self.unlock(guard, true);
    }

    /// Opens a block, unlocks, and wakes the callers whose requests were decided. `may_hurry` is whether the next
    /// wake-up of the core may have become earlier.
    #[inline]
    fn unlock(&self, mut guard: Guard<'_>, may_hurry: bool) {
        let Some(state) = guard.as_deref_mut() else { return };
        self.publish(state);
        if let Some(block) = state.core.open_block(state.now) {
            self.block.open(&block);
        }
        if state.core.has_waiters() {
            wake(guard, may_hurry);
        }
    }

    /// Stores which responses apply.
    fn publish(&self, state: &mut State) {
        let core = &mut state.core;
        let reads_all = core.reads_all(state.now);
        let new = flags::of(core.reads_remaining(), core.learns(), self.setup.counts(), reads_all);
        // Writes only a change, because other threads read this cache line.
        if self.flags.load(Ordering::Relaxed) != new {
            self.flags.store(new, Ordering::Release);
        }
    }

    /// Ends a request whose end does not change the limiter. Returns `false` if the limiter learns from each end, waits
    /// for an accepted response, or counts the requests in flight.
    #[inline]
    pub(crate) fn release_ordinary(&self, cost: NonZeroU32) -> bool {
        const SPECIAL: u8 = flags::LEARNS | flags::READS_ALL | flags::COUNTS;
        let is_ordinary = self.flags.load(Ordering::Relaxed) & SPECIAL == 0;
        if is_ordinary {
            self.release(cost);
        }
        is_ordinary
    }

    #[inline]
    fn release(&self, cost: NonZeroU32) {
        self.released.fetch_add(cost.get().into(), Ordering::AcqRel);
    }
}

/// Unlocks, and wakes the callers whose requests were decided.
#[inline(never)]
fn wake(mut guard: Guard<'_>, may_hurry: bool) {
    let mut wakes = Wakes::default();
    if let Some(state) = guard.as_deref_mut() {
        state.settle(may_hurry, &mut wakes);
    }
    drop(guard);
    wakes.wake();
}

impl State {
    /// Returns the wakers and timers, which exist as soon as a request waits.
    fn waiting(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_default()
    }

    fn has_driver(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.has_driver())
    }

    fn new(core: Core) -> Self {
        Self { core, released: 0, now: 0, waiting: None }
    }

    /// Collects the wakers of the decided requests, and of the drivers whose timers are too late.
    fn settle(&mut self, may_hurry: bool, wakes: &mut Wakes) {
        let Some(waiting) = &mut self.waiting else { return };
        while let Some(ticket) = self.core.pop_woken() {
            wakes.extend(waiting.wakers.take(ticket));
        }
        if may_hurry && !waiting.timers.is_empty() {
            // If nobody waits, a driver with a later timer ends soon.
            let wake = self.core.next_wake(self.now).unwrap_or_else(|| self.now.saturating_add(LINGER));
            wakes.extend(waiting.timers.iter_mut().filter_map(|timer| timer.hurry(wake)));
        }
    }
}

/// The word from which callers take the permits of a block without the limiter's lock.
///
/// Only the holder of the lock opens and closes. The holder that closes gets the number of permits that are left, and
/// books the others at the present or at the end of the block, whichever is earlier. The clock is read after the word
/// is closed, so no permit is booked earlier than it was taken.
///
/// The word is closed, or one of:
///
/// - a block: 15 bits of permits, then 48 bits of its end in units of 1.024 µs, which last nine years;
/// - the highest bit, and the time before which no permit is available, in nanoseconds.
#[derive(Debug)]
struct BlockWord(AtomicU64);

const CLOSED: u64 = 0;
const EMPTY: u64 = 1 << 63;
const PERMIT: u64 = 1 << 48;
const UNIT: u32 = 10;

/// The result of an attempt to take permits without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    Taken,
    /// No permit is available before this time, and no request waits.
    NotBefore(u64),
    NeedsLock,
}

impl BlockWord {
    fn new() -> Self {
        Self(AtomicU64::new(CLOSED))
    }

    /// Takes permits. The caller has read `now` before this call.
    #[inline]
    fn take(&self, cost: u32, now: u64) -> Take {
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
    fn open(&self, block: &Block) {
        let end = (block.end >> UNIT).min(PERMIT - 1);
        self.0.swap((u64::from(block.permits) * PERMIT) | end, Ordering::AcqRel);
    }

    /// Refuses all requests for one permit until `due`. Called only under the lock, while the word is closed.
    fn refuse_until(&self, due: u64) {
        self.0.swap(EMPTY | due.min(EMPTY - 1), Ordering::AcqRel);
    }

    /// Closes the word. Returns the number of permits that are left. Returns `None` if the word was closed. Called only
    /// under the lock.
    fn close(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) == CLOSED {
            return None;
        }
        let word = self.0.swap(CLOSED, Ordering::AcqRel);
        Some(if word & EMPTY != 0 { 0 } else { (word >> 48) as u32 })
    }
}

#[cfg(all(test, not(outbound_loom)))]
mod tests;
