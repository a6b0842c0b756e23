//! Models of the shell's lock-free code under every interleaving of its threads.

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    time::Duration,
};

use loom::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{BlockWord, Setup, Shared, Take};
use crate::{
    limit::core::{Block, Rule},
    policy::Quota,
};

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A unit of the word's time.
const UNIT: u64 = 1 << 10;

#[derive(Default)]
struct State {
    block: Option<Block>,
    /// The time at which each permit is booked.
    booked: Vec<u64>,
    now: u64,
}

/// The shell's use of the word, with a clock whose readings all differ.
struct Model {
    clock: AtomicU64,
    word: BlockWord,
    state: Mutex<State>,
}

impl Model {
    fn now(&self) -> u64 {
        self.clock.fetch_add(UNIT, Ordering::AcqRel)
    }

    fn enter(&self, state: &mut State, read: u64) {
        let left = self.word.close();
        state.now = state.now.max(if left.is_some() { self.now() } else { read });
        if let (Some(left), Some(block)) = (left, state.block.take()) {
            let at = state.now.min(block.end);
            state.booked.extend((left..block.permits).map(|_| at));
        }
    }

    fn open(&self, state: &mut State, permits: u32) {
        let block = Block { permits, end: state.now + 4 * UNIT };
        self.word.open(&block);
        state.block = Some(block);
    }

    /// Takes permits and returns the time that was read for them.
    fn take(&self, cost: u32) -> Vec<u64> {
        let read = self.now();
        if self.word.take(cost, read) == Take::Taken {
            return vec![read; cost as usize];
        }
        let mut state = self.state.lock().unwrap();
        if self.word.take(cost, read) == Take::Taken {
            return vec![read; cost as usize];
        }
        self.enter(&mut state, read);
        let now = state.now;
        state.booked.extend((0..cost).map(|_| now));
        self.open(&mut state, 1);
        vec![now; cost as usize]
    }
}

/// Runs two threads that take permits, and one that closes the block and opens another.
fn takers(permits: u32, costs: [&'static [u32]; 2]) {
    check(move || {
        let model = Arc::new(Model {
            clock: AtomicU64::new(UNIT),
            word: BlockWord::new(),
            state: Mutex::new(State::default()),
        });
        let now = model.now();
        {
            let mut state = model.state.lock().unwrap();
            model.enter(&mut state, now);
            model.open(&mut state, permits);
        }
        let takers = costs.map(|costs| {
            let model = Arc::clone(&model);
            thread::spawn(move || costs.iter().flat_map(|cost| model.take(*cost)).collect::<Vec<_>>())
        });
        let read = model.now();
        {
            let mut state = model.state.lock().unwrap();
            model.enter(&mut state, read);
            model.open(&mut state, 1);
        }
        let mut taken: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        let mut state = model.state.lock().unwrap();
        model.enter(&mut state, 0);
        taken.sort_unstable();
        state.booked.sort_unstable();
        assert_eq!(taken.len(), state.booked.len(), "each permit is booked once");
        let is_late = taken.iter().zip(&state.booked).all(|(taken, booked)| taken <= booked);
        assert!(is_late, "no permit is booked earlier than it was taken: {taken:?} {:?}", state.booked);
    });
}

#[test]
fn permits_of_a_block_are_booked_once_and_not_too_early() {
    takers(2, [&[1, 1], &[1, 1]]);
}

#[test]
fn last_permit_of_a_block_is_taken_once() {
    takers(1, [&[1], &[1, 1]]);
}

#[test]
fn request_for_two_permits_takes_them_from_one_block() {
    takers(3, [&[2], &[1, 1]]);
}

/// A limiter on a clock that never advances, so that every run is the same.
fn limiter(limit: u32) -> Arc<Shared> {
    let quota = Quota::new(limit, Duration::from_secs(3_600)).unwrap().without_margin();
    let setup = Setup::new(Box::new([quota]), Rule::SlidingWindow);
    Arc::new(Shared::new(Arc::new(setup)))
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap();
    let _entered = runtime.enter();
    check(run);
}

fn take(limiter: &Shared) -> u64 {
    u64::from(limiter.try_take(NonZeroU32::MIN).is_ok())
}

#[test]
fn two_threads_take_exactly_the_available_permits_and_all_are_counted() {
    model(|| {
        // The first grant opens a block of half of the permits.
        let limiter = limiter(14);
        assert_eq!(take(&limiter), 1);
        let other = Arc::clone(&limiter);
        let thread = thread::spawn(move || take(&other) + take(&other));
        let own = take(&limiter);
        limiter.locked(|core, now| core.pause(now, now));
        let mut taken = 1 + own + thread.join().unwrap();
        assert_eq!(limiter.snapshot().granted, taken);
        while take(&limiter) == 1 {
            taken += 1;
        }
        assert_eq!((taken, limiter.snapshot().granted), (14, 14));
    });
}

#[test]
fn permits_in_flight_are_never_fewer_than_those_that_were_not_released() {
    model(|| {
        let limiter = limiter(14);
        take(&limiter);
        let other = Arc::clone(&limiter);
        let thread = thread::spawn(move || {
            let at = other.try_take(NonZeroU32::MIN).unwrap();
            other.dropped((NonZeroU32::MIN, at), false, None);
        });
        let in_flight = limiter.snapshot().awaiting_response;
        assert!((1..=2).contains(&in_flight), "{in_flight}");
        thread.join().unwrap();
        assert_eq!(limiter.snapshot().awaiting_response, 1);
    });
}

#[test]
fn refusal_without_the_lock_ends_with_a_change_of_quotas() {
    model(|| {
        let limiter = limiter(1);
        take(&limiter);
        assert_eq!(take(&limiter), 0);
        let other = Arc::clone(&limiter);
        let thread = thread::spawn(move || take(&other));
        let quota = Quota::new(3, Duration::from_secs(3_600)).unwrap().without_margin();
        limiter.locked(|core, now| core.set_quotas(&[quota], now));
        let taken = thread.join().unwrap() + take(&limiter) + take(&limiter) + take(&limiter);
        assert_eq!(taken, 2);
    });
}
