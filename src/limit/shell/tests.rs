#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use super::*;
use crate::limit::limiter::PermitRequest;

/// Returns a limiter whose first grant opens a block that lasts 14 s.
fn limiter(clock: Clock) -> Shared {
    let quota = Quota::new(1_000, Duration::from_secs(3_600)).unwrap().without_margin();
    Shared::new(Arc::new(Setup { clock, ..Setup::new(Box::new([quota]), Rule::SlidingWindow) }))
}

#[test]
fn request_that_waited_for_the_lock_takes_its_permit_from_the_block_that_was_opened_meanwhile() {
    let limiter = limiter(Clock::tokio());
    limiter.try_take(NonZeroU32::MIN).unwrap();
    let (request, now) = (PermitRequest::new(), limiter.setup.clock.now());
    assert_eq!(limiter.lock_or_take(&limiter.ask(&request, now), now).err(), Some(now));
}

/// The reading at which the block closes may be earlier than a previous one of another thread.
#[cfg(feature = "quanta")]
#[test]
fn permits_of_a_block_are_booked_later_than_any_reading_of_the_fast_clock() {
    let limiter = limiter(Clock::quanta());
    for _ in 0..3 {
        limiter.try_take(NonZeroU32::MIN).unwrap();
    }
    let window = 3_600_000_000_001;
    let available = |after| limiter.locked(|core, now| core.snapshot(now + window + after).available);
    let held = limiter.locked(|core, now| 1_000 - core.snapshot(now + window + 1_023).available);
    assert_eq!((held, available(1_024)), (2, 1_000));
}

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
