//! Tests of changes of quotas, and of several quotas.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::policy::{Unit, nanos};

#[test]
fn several_quotas_grant_permits_together_or_not_at_all() {
    let mut core = core(BUCKET, &[quota(10, 1_000, 5), quota(100, 60_000, 7)]);
    // After five grants, the first quota has no permits left, and the second one has two. Refusals by the first quota
    // take no permits from the second one.
    for number in 0..105 {
        assert_eq!(core.takes(one(), 0), number < 5);
    }
    assert_eq!((core.snapshot(0).available, core.snapshot(600 * MS).available), (0, 2));
    assert!(core.takes(costing(2), 600 * MS));
    // The second quota refills one permit every 645 ms (60 s / 93), of which 600 ms have passed.
    assert_eq!(refused(&core.try_submit(one(), 600 * MS).unwrap_err()), (Reason::MaxWait, Some(45)));
}

#[test]
fn initial_burst_sets_the_permits_at_the_start() {
    for (rule, first) in [(BUCKET, SECOND / 9 + 1), (WINDOW, SECOND + 1)] {
        for permits in [0, 1, 4] {
            let settings = CoreSettings { initial_burst: Some(permits), ..CoreSettings::new(rule) };
            let mut core = Core::new(&[quota(14, 1_000, 5)], settings);
            assert_eq!(core.snapshot(0).available, permits);
            assert_eq!(core.takes(one(), 0), permits > 0);
            assert!(core.takes(one(), first));
        }
    }
}

#[test]
fn repeated_quota_changes_lose_no_permits() {
    let quotas = [quota(101, 60_000, 1), quota(100, 60_000, 1), quota(100, 60_000, 1)];
    for every in [100, 300, 600, 700] {
        let mut core = core(BUCKET, &quotas[1..2]);
        let mut granted = 0;
        for number in 0..=600_000 / every {
            let now = number * every * MS;
            core.set_quotas(&[quotas[number as usize % 3]], now);
            granted += u64::from(core.takes(one(), now));
        }
        let least = 600_000 / 607_u64.next_multiple_of(every);
        assert!((least..=991).contains(&granted), "{granted} grants with a change every {every} ms");
    }
}

#[test]
fn changing_a_quota_and_restoring_it_grants_no_extra_permits() {
    for bursts in [[10, 90, 90], [90, 10, 90], [10, 90, 10], [50, 99, 1]] {
        let mut core = core(BUCKET, &[quota(100, 60_000, bursts[0])]);
        let mut grants = Vec::new();
        for tenth in 0..2_000_usize {
            let now = tenth as u64 * 100 * MS;
            if tenth % 200 == 100 {
                core.set_quotas(&[quota(100, 60_000, bursts[tenth / 200 % 3])], now);
            }
            while core.takes(one(), now) {
                grants.push(now);
            }
        }
        assert!(
            !grants.is_empty() && grants.windows(101).all(|grants| grants[100] - grants[0] > 60 * SECOND)
        );
    }
    let mut core = core(WINDOW, &[quota(100, 60_000, 1)]);
    let mut granted = 0;
    for (second, limit) in [100, 10, 100].into_iter().enumerate() {
        core.set_quotas(&[quota(limit, 60_000, 1)], second as u64 * SECOND);
        granted += (0..200).filter(|_| core.takes(one(), second as u64 * SECOND)).count();
    }
    assert_eq!(granted, 100);
}

/// A grant may have been backdated by 100 ms, a quarter of the margin. One permit takes 200 ms without the margin.
#[test]
fn bucket_that_loses_its_margin_refills_later_by_the_time_of_a_backdated_grant() {
    let wide = quota(10, 1_000, 5).with_margin(Duration::from_millis(400)).unwrap();
    let mut core = core(BUCKET, &[wide]);
    assert!(core.takes(costing(5), 0));
    core.set_quotas(&[quota(10, 1_000, 5)], 0);
    assert_eq!(refused(&core.try_submit(one(), 0).unwrap_err()), (Reason::MaxWait, Some(300)));
}

/// The permits of a store expire.
#[test]
fn grant_of_a_store_is_not_backdated_after_a_change_of_the_quota() {
    struct Full;
    impl PermitSource for Full {
        fn take(&mut self, _: NonZeroU32, _: &Amounts, _: u64) -> bool {
            true
        }

        fn forecast(&self, start: u64, _: u64, _: u32) -> u64 {
            start
        }

        fn available(&self, _: u64) -> u32 {
            1
        }
    }
    let quotas = [quota(10, 1_000, 5).with_margin(Duration::from_millis(400)).unwrap()];
    let mut core = Core::from_source(Box::new(Full), &quotas, CoreSettings::new(BUCKET));
    assert_eq!(core.lateness.start(SECOND), SECOND);
    core.set_quotas(&quotas, 0);
    assert_eq!(core.lateness.start(SECOND), SECOND);
}

#[test]
fn bucket_of_the_server_that_replaces_a_window_counts_the_grants_of_the_window() {
    for rule in [PACED, WINDOW] {
        let mut core = core(rule, &[quota(40, 60_000, 39)]);
        let takes = |core: &mut Core, now| (0..100).filter(|_| core.takes(one(), now)).count();
        assert!(takes(&mut core, SECOND) >= 39, "{rule:?}");
        core.set_quotas(&[Quota::bucket(40, 2, Duration::from_secs(1)).unwrap().without_margin()], SECOND);
        assert_eq!(takes(&mut core, SECOND), 0, "{rule:?}");
        assert_eq!(takes(&mut core, 6 * SECOND), 10, "{rule:?}");
    }
}

#[test]
fn window_of_a_unit_counts_the_whole_amounts_of_an_earlier_window_beside_a_bucket() {
    let unit = |quota: Quota| quota.with_unit(Unit::Tokens).unwrap();
    // The log of the bucket covers a longer time than the window, and counts 5 of the 21 tokens.
    let bucket = unit(Quota::bucket(5, 1, Duration::from_secs(1)).unwrap().without_margin());
    let mut core = core(WINDOW, &[unit(quota(30, 1_000, 29)), bucket]);
    let takes = |core: &mut Core, tokens| {
        let amounts = Amounts::of(Unit::Tokens, tokens);
        core.takes(Ask { amounts: &amounts, ..one() }, SECOND)
    };
    assert!(takes(&mut core, 21));
    core.set_quotas(&[unit(quota(30, 1_500, 29))], SECOND);
    assert_eq!([10, 9, 1].map(|tokens| takes(&mut core, tokens)), [false, true, false]);
}

#[test]
fn first_quota_of_a_used_limiter_starts_without_its_burst() {
    for (rule, first) in [(BUCKET, SECOND), (PACED, SECOND), (WINDOW, 10 * SECOND)] {
        let quota = quota(14, 10_000, 4);
        let mut unused = core(rule, &[]);
        unused.set_quotas(&[quota], 0);
        assert!(unused.takes(costing(4), 0));

        let mut used = core(rule, &[]);
        assert!(used.takes(one(), 0));
        used.set_quotas(&[quota], 0);
        let wait = used.try_submit(one(), 0).unwrap_err().wait().unwrap();
        assert!((first / 2..=first + 1).contains(&nanos(wait)), "{rule:?}: {wait:?}");
    }
}

/// The wait for a million permits at one permit per year is capped, so that no calculation overflows.
#[test]
fn spent_permits_still_count_after_a_temporary_quota_of_one_permit_per_year() {
    let fast = quota(2_000_000, 1_000, 1_000_000);
    let mut core = core(BUCKET, &[fast]);
    assert!(core.takes(costing(1_000_000), 0));
    core.set_quotas(&[quota(2, 366 * 86_400_000, 1)], 0);
    let years = core.try_submit(one(), 0).unwrap_err().wait().unwrap().as_secs() / (365 * 86_400);
    assert!((100..150).contains(&years), "{years}");
    core.set_quotas(&[fast], 0);
    assert!(!core.takes(one(), 0));
    assert_eq!(core.snapshot(2 * SECOND).available, 1_000_000);
}

/// The permits of the longer window would take six minutes to refill at the rate of the shorter one.
#[test]
fn wait_after_a_longer_window_lasts_for_the_new_window_and_its_burst_at_most() {
    let (short, long) = (quota(10, 1_000, 5), quota(36_000, 3_600_000, 3_600));
    for spent in [1, 3_600] {
        let mut core = core(PACED, &[if spent == 1 { short } else { long }]);
        assert!(core.takes(costing(spent), 0));
        core.set_quotas(&[long], 0);
        core.set_quotas(&[short], 0);
        let wait = nanos(core.try_submit(one(), 0).unwrap_err().wait().unwrap());
        assert!(wait <= 2 * SECOND, "{spent}: {wait}");
        assert!(core.takes(one(), wait), "{spent}");
        assert_eq!(core.snapshot(2 * SECOND + wait).available, 5, "{spent}");
    }
}

#[test]
fn queue_leaves_slowly_after_a_pause_during_which_the_quotas_were_removed() {
    let mut core = core(BUCKET, &[quota(100, 60_000, 10)]);
    core.pause(10 * SECOND, 0);
    (0..50).for_each(|_| _ = core.queued(one(), 0));
    core.set_quotas(&[], 0);
    let served = core.serve_until(0, 99 * SECOND);
    assert!(served.len() == 50 && served[49].0 > 10_500 * MS, "{served:?}");
}

#[cfg(feature = "client")]
#[test]
fn learned_unit_does_not_count_amounts_from_before_the_limiter_learned() {
    let tokens = |amount| Amounts::of(Unit::Tokens, amount);
    let quota = quota(30_000, 60_000, 1_000).with_unit(Unit::Tokens).unwrap();
    let mut core = core(PACED, &[quota]);
    let [early, late] = [1_000, 500].map(tokens);
    let first = core.try_submit(Ask { amounts: &early, ..one() }, SECOND).unwrap();
    core.reconfigure(&[], &CoreSettings::new(PACED), 2 * SECOND);
    core.try_submit(Ask { amounts: &late, ..one() }, 3 * SECOND).unwrap();
    core.settle(first.taken_at, &Taken::of(early), &tokens(800), 4 * SECOND);
    let taken = Taken { charged: tokens(800), is_accepted: Some(true), ..Taken::of(early) };
    core.finished(first, End::Unconfirmed, &taken, 4 * SECOND);
    assert_eq!(core.learned_amounts(), [500, 0]);
}

#[cfg(feature = "client")]
#[test]
fn learned_unit_does_not_count_permits_that_were_collected_after_the_limiter_began_to_learn() {
    let tokens = |amount| Amounts::of(Unit::Tokens, amount);
    let quota = Quota::per_minute(30_000).unwrap().with_unit(Unit::Tokens).unwrap();
    let mut core = core(PACED, &[quota]);
    let [early, late] = [1_000, 500].map(tokens);
    core.pause(SECOND, 0);
    let waiting = core.queued(Ask { amounts: &early, ..one() }, 0);
    core.advance(SECOND);
    core.reconfigure(&[], &CoreSettings::new(PACED), SECOND + 50 * MS);
    let Status::Granted(first) = core.status(waiting, SECOND + 100 * MS) else { panic!("not granted") };
    core.try_submit(Ask { amounts: &late, ..one() }, SECOND + 200 * MS).unwrap();
    let taken = Taken { is_accepted: Some(true), ..Taken::of(early) };
    core.finished(first, End::Unconfirmed, &taken, SECOND + 300 * MS);
    assert_eq!(core.learned_amounts(), [500, 0]);
}

/// One or two quotas of this unit.
fn some_quotas(unit: Unit) -> impl Strategy<Value = Vec<Quota>> {
    let window = select(&[100, 1_000, 3_000, 10_000]);
    let quota = (1_u32..30, window, 1_u32..30, 0_u32..3).prop_map(move |(limit, window, other, kind)| {
        let new = match kind {
            0 => Quota::bucket(limit, other, Duration::from_millis(window)).unwrap().without_margin(),
            _ => quota(limit, window, other.min(limit - 1).max(1)),
        };
        new.with_unit(unit).unwrap()
    });
    vec(quota, 1..3)
}

#[derive(Debug, Clone)]
enum Step {
    /// Takes as many permits, or this amount as often, as are available.
    Take(u32),
    Wait(u64),
    Change(Vec<Quota>),
}

fn some_steps(unit: Unit) -> impl Strategy<Value = (Unit, Vec<Quota>, Vec<Step>)> {
    let step = prop_oneof![
        3 => (1_u32..4).prop_map(Step::Take),
        3 => (0_u64..1_500).prop_map(Step::Wait),
        2 => some_quotas(unit).prop_map(Step::Change),
    ];
    (Just(unit), some_quotas(unit), vec(step, 1..40))
}

/// Returns the number of permits that a window must allow, or a bucket contain, for these grants.
fn needed(quota: &Quota, grants: &[(u64, u64)], now: u64) -> f64 {
    let Some((refill, per)) = quota.refill() else {
        let recent = grants.iter().filter(|(at, _)| at + nanos(quota.window()) >= now);
        return recent.map(|(_, cost)| *cost as f64).sum();
    };
    let (rate, capacity) = (f64::from(refill) / nanos(per) as f64, f64::from(quota.limit()));
    // A previous quota may have allowed more than the capacity, which then counts as the capacity.
    let level = |(level, before): (f64, u64), (at, cost): &(u64, u64)| {
        ((level.min(capacity) - (at - before) as f64 * rate).max(0.0) + *cost as f64, *at)
    };
    grants.iter().fold((0.0, 0), level).0
}

proptest! {
    /// A window also counts the grants of the previous window, and a bucket those of a previous window.
    #[test]
    fn no_quota_is_exceeded_after_any_changes(
        rule in select(&[BUCKET, PACED, WINDOW]),
        (unit, mut quotas, steps) in prop_oneof![some_steps(Unit::Requests), some_steps(Unit::Tokens)],
    ) {
        let (mut core, mut now, mut grants) = (core(rule, &quotas), SECOND, Vec::new());
        let (is_cost, mut in_windows, mut in_buckets) = (unit == Unit::Requests, 0, 0);
        for step in steps {
            match step {
                Step::Wait(time) => now += time * MS,
                Step::Change(new) => {
                    let has_log = !is_cost || rule != BUCKET;
                    let shortest = quotas.iter().map(|quota| nanos(quota.window())).min().unwrap();
                    let earlier = grants.partition_point(|(at, _)| at + shortest < now);
                    in_windows = if has_log { earlier.max(in_windows) } else { grants.len() };
                    let is_logged = has_log && !quotas.iter().any(Quota::is_bucket);
                    // The log of a window lacks the grants of the buckets that the window replaced.
                    in_buckets = if is_logged { in_windows.max(in_buckets) } else { grants.len() };
                    core.set_quotas(&new, now);
                    quotas = new;
                }
                Step::Take(number) => {
                    let number = quotas.iter().map(Quota::limit).fold(number, u32::min);
                    let amounts = Amounts::of(Unit::Tokens, number);
                    let tokens = Ask { amounts: &amounts, ..one() };
                    while core.takes(if is_cost { costing(number) } else { tokens }, now) {
                        grants.push((now, number.into()));
                        for quota in &quotas {
                            let counted = if quota.is_bucket() { in_buckets } else { in_windows };
                            let needed = needed(quota, &grants[counted..], now);
                            let limit = f64::from(quota.limit()) + 0.000_001;
                            prop_assert!(needed <= limit, "{needed} of {quota:?} at {now}");
                        }
                    }
                }
            }
        }
    }
}
