//! Tests of the queue: order, absent waiters, expiry and refusals.

use super::*;

/// One request fits into each window, but the forecast counts only permits.
#[test]
fn waiter_whose_forecast_was_too_early_is_refused_at_its_bound() {
    let mut core = core(WINDOW, &[quota(10, 10_000, 1)]);
    assert!(core.takes(costing(6), 0));
    (0..19).for_each(|_| _ = core.queued(costing(6), 0));
    let bounded = core.queued(costing(6).within(0, 125 * SECOND), 0);
    let ended = core.run(0, 200 * SECOND).into_iter().find(|(_, ticket)| *ticket == bounded);
    assert!(ended.is_some_and(|(at, _)| at <= 125 * SECOND + 10 * MS), "{ended:?}");
}

#[test]
fn next_waiter_is_served_on_time_after_the_first_one_leaves() {
    let mut core = refilling(1, 3);
    let first = core.queued(costing(3), 0);
    let next = core.queued(one(), 0);
    core.cancel(first, SECOND / 2);
    assert_eq!(core.serve_until(SECOND / 2, 9 * SECOND), [(SECOND, next)]);
    // A cancelled grant is wasted, and a ticket that has ended has no effect.
    let wasted = core.queued(one(), SECOND);
    assert_eq!(core.run(SECOND, 2 * SECOND), [(2 * SECOND, wasted)]);
    core.cancel(wasted, 2 * SECOND);
    core.cancel(wasted, 2 * SECOND);
    assert_eq!((core.snapshot(0).granted, core.snapshot(0).awaiting_response), (2, 1));
    assert!(matches!(core.status(wasted, 2 * SECOND), Status::Refused(_)));
}

#[test]
fn absent_waiters_take_no_permits_of_a_full_bucket() {
    for absent in [1, 36] {
        let mut core = core(BUCKET, &[quota(100, 3_600_000, 36)]);
        while core.takes(one(), 0) {}
        (0..absent).for_each(|_| _ = core.queued(one(), 0));
        let now = 7_200 * SECOND;
        core.run(0, now);
        assert!(core.takes(one(), now));
        assert_eq!(core.snapshot(now).available, 35);
    }
}

#[test]
fn permits_of_a_waiter_expire_over_time_and_with_a_pause() {
    let mut core = core(WINDOW, &[quota(2, 10_000, 1)]);
    assert!(core.takes(costing(2), 0));
    let waiters = [core.queued(one(), 0), core.queued(one(), 0)];
    let at = core.run(0, 10 * SECOND + 1)[1].0;
    assert!(matches!(core.status(waiters[0], at + 50 * MS), Status::Granted(_)));
    core.pause(at + 60 * SECOND, at + 50 * MS);
    assert_eq!(core.status(waiters[1], at + 50 * MS), Status::Waiting);
    assert_eq!(core.serve_until(at, 99 * SECOND), [(at + 60 * SECOND, waiters[1])]);
    let grant = Grant::new(at, NonZeroU32::MIN);
    assert!(!core.is_expired(at + 90 * SECOND, at + 90 * SECOND + 50 * MS));
    assert!(core.is_expired(at + 90 * SECOND, at + 90 * SECOND + 50 * MS + 1));
    core.finished(grant, End::Unsent, &Taken::default(), at + 90 * SECOND);
}

#[test]
fn refusal_carries_the_exact_wait() {
    let mut core = core(BUCKET, &[quota(11, 10_000, 1)]);
    assert!(core.takes(one(), 0));
    let waiting = core.queued(one(), 0);
    assert_eq!(core.refused(one().within(0, 1_999 * MS), 0), (Reason::MaxWait, Some(2_000)));
    assert_eq!(core.refused(one().by(1_999 * MS), 0), (Reason::Deadline, Some(2_000)));
    assert_eq!(core.refused(Ask { max_queue: 1, ..one() }, 0), (Reason::QueueFull, Some(2_000)));
    assert_eq!(refused(&core.try_submit(one(), 0).unwrap_err()), (Reason::MaxWait, Some(2_000)));
    assert_eq!(core.refused(costing(2), 0), (Reason::TooCostly { largest: 1 }, None));
    let fits = core.queued(one().within(0, 2_000 * MS), 0);
    core.cancel(waiting, 0);
    assert_eq!(core.serve_until(0, 9 * SECOND), [(SECOND, fits)]);
    assert_eq!(core.refused(one().by(SECOND), SECOND + 1), (Reason::Deadline, Some(0)));
    assert_eq!((core.snapshot(0).granted, core.snapshot(0).refused), (2, 6));
}

#[test]
fn waiter_is_refused_as_soon_as_a_pause_makes_it_late() {
    let mut core = core(BUCKET, &[quota(11, 110_000, 1)]);
    assert!(core.takes(one(), 0));
    let head = core.queued(one().by(30 * SECOND), 0);
    let second = core.queued(one().by(200 * SECOND), 0);
    core.pause(100 * SECOND, SECOND);
    assert_eq!(core.pop_woken(), Some(head));
    let Status::Refused(refusal) = core.status(head, SECOND) else { panic!("not refused") };
    assert_eq!(refused(&refusal), (Reason::Deadline, Some(99_000)));
    assert_eq!(core.refused(one().by(105 * SECOND), SECOND), (Reason::Deadline, Some(110_000)));
    assert_eq!(core.serve_until(SECOND, 999 * SECOND), [(100 * SECOND, second)]);
}

/// A waiter behind a costly one does not know the gap until it is the first one.
#[test]
fn first_waiter_is_refused_if_a_gap_delays_it() {
    let mut core = core(WINDOW, &[quota(3, 10_000, 1)]);
    assert!(core.takes(one(), 0) && core.takes(costing(2), 5 * SECOND));
    let first = core.queued(costing(2), 5 * SECOND);
    let second = core.queued(costing(2).within(5 * SECOND, 16 * SECOND), 5 * SECOND);
    let woken = core.run(5 * SECOND, 16 * SECOND);
    assert_eq!(woken.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [first, second]);
    let at = woken[1].0;
    let Status::Refused(refusal) = core.status(second, at) else { panic!("not refused") };
    assert_eq!(refused(&refusal), (Reason::MaxWait, Some(10_000)));
}

#[test]
fn returning_waiter_delays_those_behind_it_beyond_their_bounds() {
    let mut core = refilling(1, 1);
    let absent = core.queued(one(), 0);
    core.run(0, 1_500 * MS);
    let bounded = core.queued(one().within(1_500 * MS, 1_400 * MS), 1_500 * MS);
    assert_eq!(core.status(absent, 1_500 * MS), Status::Waiting);
    let woken = core.run(1_500 * MS, 1_600 * MS);
    assert_eq!(woken, [(1_510 * MS, bounded)], "checked after 10 ms");
    assert!(matches!(core.status(bounded, 1_510 * MS), Status::Refused(_)));
}

#[test]
fn smaller_quota_refuses_costly_waiters_and_those_that_return() {
    let mut core = core(BUCKET, &[quota(20, 10_000, 10)]);
    assert!(core.takes(costing(10), 0));
    let absent = core.queued(costing(9), 0);
    core.run(0, 10 * SECOND);
    let costly = core.queued(costing(9), 10 * SECOND);
    core.set_quotas(&[quota(80, 10_000, 8)], 10 * SECOND);
    assert_eq!(core.pop_woken(), Some(costly));
    for ticket in [costly, absent] {
        let Status::Refused(refusal) = core.status(ticket, 10 * SECOND) else { panic!("not refused") };
        assert_eq!(refusal.reason(), Reason::TooCostly { largest: 8 });
    }
    assert_eq!(core.snapshot(10 * SECOND).queued, 0);
}
