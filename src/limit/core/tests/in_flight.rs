//! Tests of the limit of requests in flight.

use super::*;

fn limited(max: u32, hold: u64, quotas: &[Quota]) -> Core {
    let max_in_flight = NonZeroU32::new(max);
    Core::new(quotas, CoreSettings { max_in_flight, hold_after_cancel: hold, ..CoreSettings::new(BUCKET) })
}

fn requests(core: &Core, now: u64) -> u32 {
    core.snapshot(now).requests_in_flight.unwrap()
}

#[test]
fn waiter_for_a_request_in_flight_is_refused_at_its_bound() {
    let mut core = limited(1, 0, &[]);
    assert!(core.takes(one(), 0));
    let refusal = core.submit(one().within(0, 0), 0).unwrap_err();
    assert_eq!((refused(&refusal), refusal.max_in_flight()), ((Reason::MaxWait, None), Some(1)));
    let bounds = [one(), one().within(0, 3 * SECOND), one().by(2 * SECOND), one().by(2 * SECOND + MS)];
    let tickets = bounds.map(|ask| core.queued(ask, 0));
    let refused: Vec<_> = core.run(0, 9 * SECOND).iter().map(|(at, ticket)| (*at / MS, *ticket)).collect();
    assert_eq!(refused, [(2_000, tickets[2]), (2_010, tickets[3]), (3_000, tickets[1])]);
    let Status::Refused(refusal) = core.status(tickets[2], 9 * SECOND) else { panic!("not refused") };
    assert_eq!(
        (refusal.reason(), refusal.wait(), refusal.max_in_flight()),
        (Reason::Deadline, None, Some(1))
    );
}

#[test]
fn quota_also_applies_and_its_waits_are_forecast() {
    // One permit per second, and a burst of three.
    let mut core = limited(2, 0, &[quota(13, 10_000, 3)]);
    assert!(core.takes(one(), 0) && core.takes(one(), 0) && !core.takes(one(), 0));
    (0..2).for_each(|_| core.end_in_flight(false, 0));
    assert!(core.takes(one(), 0));
    let refusal = core.try_submit(one(), 0).unwrap_err();
    assert_eq!((refused(&refusal), refusal.max_in_flight()), ((Reason::MaxWait, Some(1_000)), None));
    core.queued(one(), 0);
    assert_eq!(core.refused(one().within(0, SECOND), 0), (Reason::MaxWait, Some(2_000)));
}

#[test]
fn grant_is_not_backdated_to_a_time_at_which_another_request_was_in_flight() {
    let quota = Quota::new(2, Duration::from_secs(1)).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let mut core = limited(1, 0, &[quota]);
    core.supply.quotas.leave(1, 0);
    assert!(core.takes(one(), 0));
    let due = core.try_submit(one(), 0).unwrap_err();
    assert_eq!(due.max_in_flight(), None, "the permits are not available either");
    core.queued(one(), 0);
    let ended = 10 * SECOND;
    core.end_in_flight(false, ended);
    assert_eq!(core.lateness.taken_at, ended);
}

/// Such a request may hold a connection for which the request in flight waits.
#[test]
fn request_that_is_in_flight_gets_its_new_permits_before_waiters_that_are_not() {
    // Ten permits per second.
    let mut core = limited(1, 0, &[quota(13, 1_000, 3)]);
    core.supply.quotas.leave(1, 0);
    let expired = core.try_submit(one(), 0).unwrap();
    let waiter = core.queued(one(), 0);
    core.finished(expired, End::Unsent, &Taken::default(), 0);
    let renewed = core.queued(Ask { is_renewed: true, is_in_flight: true, ..one() }, 0);
    assert_eq!(core.run(0, 100 * MS), [(100 * MS, renewed)]);
    assert!(matches!(core.status(renewed, 100 * MS), Status::Granted(_)));
    // Without a wait, the permits are granted at once.
    assert!(core.takes(Ask { is_renewed: true, is_in_flight: true, ..one() }, SECOND));
    assert_eq!(requests(&core, SECOND), 1);
    core.end_in_flight(false, SECOND);
    assert_eq!(core.pop_woken(), Some(waiter));
}
