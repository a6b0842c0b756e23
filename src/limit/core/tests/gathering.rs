//! Tests of late timers: backdated grants, and wake-ups that serve several waiters.

use super::*;

/// Serves `calls` waiters with a timer that is `late`. Returns the time of the last grant and the number of wake-ups.
fn serve(core: &mut Core, calls: u32, late: u64) -> (u64, u32) {
    (0..calls).for_each(|_| _ = core.submit(one(), 0));
    let (mut now, mut wakes) = (0, 0);
    while let Some(wake) = core.next_wake(now) {
        now = wake.max(now) + late;
        wakes += 1;
        core.advance(now);
        while let Some(ticket) = core.pop_woken() {
            assert!(matches!(core.status(ticket, now), Status::Granted(_)));
        }
    }
    (now, wakes)
}

#[test]
fn late_timers_lower_no_rate_within_a_quarter_of_the_margin() {
    for rule in [BUCKET, PACED, WINDOW] {
        let quota = Quota::new(1_000, Duration::from_secs(1)).unwrap().with_burst(1).unwrap();
        let mut prompt = core(rule, &[quota]);
        let mut late = core(rule, &[quota]);
        let (on_time, _) = serve(&mut prompt, 3_000, 0);
        let (last, wakes) = serve(&mut late, 3_000, 11 * MS);
        assert!(last <= on_time + 15 * MS, "{rule:?}: {last}, {on_time} without late timers");
        assert!(wakes < 1_000, "{rule:?}: {wakes} wake-ups");
    }
}

#[test]
fn one_wake_up_serves_several_waiters_if_the_margin_allows_it() {
    for (rule, has_margin, most) in
        [(BUCKET, true, 700), (PACED, true, 700), (PACED, false, 3_001), (BUCKET, false, 700)]
    {
        let quota = Quota::new(10_000, Duration::from_secs(1)).unwrap();
        let burst = if has_margin { 1 } else { 100 };
        let quota = quota.with_burst(burst).unwrap();
        let mut core = core(rule, &[if has_margin { quota } else { quota.without_margin() }]);
        core.supply.quotas.leave(0, 0);
        let (_, wakes) = serve(&mut core, 3_000, 0);
        assert!(wakes <= most, "{rule:?}, margin {has_margin}: {wakes} wake-ups");
    }
}

#[test]
fn gathering_delays_a_grant_by_at_most_4_ms_and_a_sixteenth_of_the_last_wait() {
    for waiters in [1, 2, 20, 200, 2_000] {
        let mut core = refilling(1_000, 1_000);
        (0..waiters).for_each(|_| _ = core.queued(one(), 0));
        let wake = core.next_wake(0).unwrap();
        let late = wake - MS;
        assert!(late <= (waiters * MS / 16).min(4 * MS), "{waiters} waiters: {late} ns");
        assert_eq!(late == 4 * MS, waiters == 2_000 || waiters == 200);
    }
}

#[test]
fn gathering_delays_no_waiter_beyond_its_bounds() {
    let mut core = refilling(1_000, 1_000);
    (0..500).for_each(|_| _ = core.queued(one(), 0));
    assert_eq!(core.next_wake(0), Some(5 * MS));
    let bounded = core.queued(of(1, Priority::High).within(0, 3 * MS), 0);
    core.queued(of(1, Priority::High), 0);
    assert!(core.next_wake(0).unwrap() <= 2 * MS);
    assert!(core.serve_until(0, 3 * MS).iter().any(|(at, ticket)| *ticket == bounded && *at <= 3 * MS));
}

/// A grant is not backdated to a time at which a pause or another waiter held it up.
#[test]
fn grant_is_not_backdated_beyond_a_pause_or_a_cancelled_waiter() {
    let quota = Quota::new(2, Duration::from_secs(10)).unwrap().with_margin(Duration::from_secs(8)).unwrap();
    let mut core = core(WINDOW, &[quota]);
    core.pause(50 * SECOND, 0);
    (0..3).for_each(|_| _ = core.queued(one(), 0));
    let served = core.serve_until(0, 99 * SECOND);
    assert_eq!(served.iter().map(|(at, _)| at / SECOND).collect::<Vec<_>>(), [50, 50, 68]);
    let costly = core.queued(costing(2), 69 * SECOND);
    let next = core.queued(one(), 69 * SECOND);
    core.cancel(costly, 85 * SECOND);
    assert_eq!(core.pop_woken(), Some(next));
    assert_eq!(core.refused(one().within(85 * SECOND, 0), 85 * SECOND).1, Some(1_000));
}
