//! Models of the shell's lock-free code under every interleaving of its threads.

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    time::Duration,
};

use loom::{sync::atomic::AtomicU64, thread};

use super::{Clock, Setup, Shared};
use crate::{limit::core::Rule, policy::Quota};

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Runs two threads that take permits, and one that closes the block and opens another. All readings of the clock
/// differ.
fn takers(limit: u32, costs: [&'static [u32]; 2]) {
    model(move || {
        let quota = Quota::new(limit, HOUR).unwrap().without_margin();
        let mut setup = Setup::new(Box::new([quota]), Rule::SlidingWindow);
        setup.clock.next = Some(Arc::new(AtomicU64::new(1)));
        let limiter = Arc::new(Shared::new(Arc::new(setup)));
        // Opens a block of half of the permits that are left.
        let first = limiter.try_take(NonZeroU32::MIN).unwrap();
        let takers = costs.map(|costs| {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || {
                let take = |cost: &u32| {
                    let at = limiter.try_take(NonZeroU32::new(*cost).unwrap()).unwrap();
                    std::iter::repeat_n(at, *cost as usize)
                };
                costs.iter().flat_map(take).collect::<Vec<_>>()
            })
        });
        limiter.locked(|_, _| ());
        let mut taken: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        taken.push(first);
        taken.sort_unstable();
        limiter.locked(|core, now| {
            assert_eq!(core.snapshot(now).granted, taken.len() as u64, "each permit is booked once");
            for (earlier, at) in taken.iter().enumerate() {
                // The permits of this time and later ones are still in the window.
                let held = limit - core.snapshot(at + HOUR.as_nanos() as u64).available;
                let least = taken.len() - earlier;
                assert!(held as usize >= least, "booked earlier than taken: {held} after {at} of {taken:?}");
            }
        });
    });
}

#[test]
fn permits_of_a_block_are_booked_once_and_not_too_early() {
    takers(14, [&[1, 1], &[1, 1]]);
}

#[test]
fn last_permit_of_a_block_is_taken_once() {
    takers(14, [&[5], &[1, 1]]);
}

#[test]
fn request_for_two_permits_takes_them_from_one_block() {
    takers(14, [&[2], &[1, 1]]);
}

/// A limiter on a clock that never advances, so that every run is the same.
fn limiter(limit: u32) -> Arc<Shared> {
    let quota = Quota::new(limit, HOUR).unwrap().without_margin();
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
        let quota = Quota::new(3, HOUR).unwrap().without_margin();
        limiter.locked(|core, now| core.set_quotas(&[quota], now));
        let taken = thread.join().unwrap() + take(&limiter) + take(&limiter) + take(&limiter);
        assert_eq!(taken, 2);
    });
}
