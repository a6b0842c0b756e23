//! Tests of blocks: when one opens, and how its permits are booked.

use super::{supply::Quotas, *};
use crate::random::Random;

/// A quota whose blocks last about 4.2 ms.
fn ample(rule: Rule) -> Core {
    core(rule, &[Quota::new(1_000, Duration::from_secs(1)).unwrap()])
}

#[test]
fn block_holds_half_of_the_free_permits_if_requests_are_dense() {
    for (rule, free) in [(BUCKET, 100), (PACED, 100), (WINDOW, 1_000)] {
        let mut core = ample(rule);
        assert_eq!(core.open_block(10 * SECOND), None, "the first request");
        assert!(core.takes(one(), 10 * SECOND));
        let block = core.open_block(10 * SECOND + MS).unwrap();
        assert_eq!(block.permits, (free - 1) / 2 + u32::from(rule != WINDOW) * (free % 2), "{rule:?}");
        assert_eq!(block.end - 10 * SECOND - MS, 1_062_500_000 / 256);
        core.close_block(block.permits, 10 * SECOND + 2 * MS);
        assert_eq!(core.open_block(10 * SECOND + 4 * MS), None, "requests are too rare");
    }
}

#[test]
fn no_block_opens_if_few_permits_are_free_or_a_request_waits_or_a_limit_applies() {
    let mut small = core(PACED, &[Quota::per_minute(100).unwrap()]);
    let mut waiting = ample(PACED);
    while waiting.takes(one(), 0) {}
    waiting.queued(one(), 0);
    let mut paused = ample(PACED);
    paused.pause(SECOND, 0);
    let mut unlimited = core(BUCKET, &[]);
    let mut learned = core(Rule::Learned, &[Quota::new(1_000, Duration::from_secs(1)).unwrap()]);
    for core in [&mut small, &mut waiting, &mut paused, &mut unlimited, &mut learned] {
        assert_eq!((core.open_block(0), core.open_block(0)), (None, None));
    }
}

#[test]
fn block_is_booked_when_it_closes_but_not_after_its_end() {
    for (closed, booked) in [(SECOND + MS, SECOND + MS), (9 * SECOND, SECOND + 1_062_500_000 / 256)] {
        let mut core = ample(WINDOW);
        core.open_block(SECOND);
        let block = core.open_block(SECOND).unwrap();
        core.close_block(0, closed);
        assert_eq!(
            core.snapshot(closed).granted,
            u64::from(block.permits),
            "at most the permits of the block"
        );
        assert_eq!(core.snapshot(booked).available, 500);
        assert_eq!(core.snapshot(booked + 1_062_500_001).available, 1_000);
        assert_eq!(core.snapshot(booked + 1_062_500_000).available, 500);
        core.close_block(0, closed);
        assert_eq!(core.snapshot(closed).granted, u64::from(block.permits), "no block is open");
    }
}

/// The permits that callers take in a test of the rate.
const TAKEN: u64 = 90_000;

/// Lets callers take permits as the shell does: from the open block, or with the lock. They take all permits, one every
/// 100 µs, and then rest for a while. Returns how long they take, and the number of permits from blocks.
fn take_all(mut core: Core, rest: u64, has_blocks: bool) -> (u64, u64) {
    let (mut block, mut now, mut taken, mut from_blocks) = (None::<Block>, 0, 0, 0);
    while taken < TAKEN {
        now += MS / 10;
        taken += 1;
        if let Some(open) = block.as_mut().filter(|open| open.permits > 0 && now < open.end) {
            open.permits -= 1;
            from_blocks += 1;
            continue;
        }
        if let Some(block) = block.take() {
            core.close_block(block.permits, now);
        }
        match core.try_submit(one(), now) {
            Ok(_) => block = core.open_block(now).filter(|_| has_blocks),
            Err(refusal) => {
                taken -= 1;
                now += refusal.wait().unwrap().as_nanos() as u64 + rest;
            }
        }
    }
    (now, from_blocks)
}

/// A block is booked late, so its permits return late.
#[test]
fn callers_that_take_permits_from_blocks_get_at_least_99_percent_of_the_rate() {
    for (rule, rest) in [(BUCKET, 0), (BUCKET, 50), (PACED, 0), (PACED, 50), (WINDOW, 0)] {
        let (without, _) = take_all(ample(rule), rest * MS, false);
        let (with, from_blocks) = take_all(ample(rule), rest * MS, true);
        let part = without as f64 / with as f64;
        assert!(part > 0.999, "{rule:?}, rests of {rest} ms: {part} of the rate without blocks");
        // Without rests, few permits of a bucket are free at once.
        let has_blocks = rest > 0 || rule == WINDOW;
        assert!(!has_blocks || from_blocks > TAKEN / 50, "{rule:?}: {from_blocks} permits from blocks");
        let per_window = if rule == BUCKET { 900 } else { 1_000 };
        let ideal = TAKEN as f64 / per_window as f64 * 1_062_500_000.0;
        assert!(rest > 0 || ideal / with as f64 > 0.99, "{rule:?}: {} of the quota", ideal / with as f64);
    }
}

/// A block gives each permit to another request, so it counts the gaps that a paced window leaves between requests.
#[test]
fn singles_are_the_requests_for_one_permit_that_are_available_together() {
    for seed in 0..2_000 {
        let random = Random::seeded(seed);
        let rule = random.pick(&[Rule::TokenBucket, Rule::PacedWindow, Rule::SlidingWindow]);
        let limits = |random: &Random| {
            let limit = 2 + random.up_to(28) as u32;
            let quota = Quota::new(limit, Duration::from_nanos(1 + random.up_to(200))).unwrap();
            quota.with_burst(1 + random.up_to(u64::from(limit) - 2) as u32).unwrap().without_margin()
        };
        let quotas: Vec<_> = (0..1 + random.up_to(1)).map(|_| limits(&random)).collect();
        let (mut quotas, mut now) = (Quotas::new(&quotas, rule), 1);
        for _ in 0..60 {
            now += random.up_to(40);
            let singles = quotas.singles(now);
            assert!(quotas.due(now, singles, 1) <= now, "seed {seed}: {singles} at {now}");
            assert!(quotas.due(now, singles + 1, 1) > now, "seed {seed}: more than {singles} at {now}");
            let cost = 1 + random.up_to(quotas.largest() as u64 - 1);
            if quotas.due(now, cost, cost) <= now {
                quotas.take(now, cost);
            }
        }
    }
}
