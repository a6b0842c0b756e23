//! Tests of the order of requests with different priorities.

use super::*;
use crate::policy::Priority::{High, Low, Normal};

#[test]
fn higher_priorities_are_served_first_and_each_priority_first_in_first_out() {
    let mut core = refilling(1, 1);
    let order = [Low, Normal, High, Low, Normal, High].map(|priority| core.queued(of(1, priority), 0));
    let served = core.serve_until(0, 9 * SECOND);
    let expected = [2, 5, 1, 4, 0, 3].map(|index: usize| order[index]);
    assert_eq!(served.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), expected);
    assert_eq!(served.iter().map(|(at, _)| at / SECOND).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn high_request_waits_for_at_most_two_refills_behind_costly_requests() {
    let mut core = refilling(10, 10);
    for _ in 0..100 {
        core.queued(of(7, Normal), 0);
        core.queued(of(10, Low), 0);
    }
    let mut now = 0;
    for number in 0..60 {
        now += (300 + 37 * number) * MS;
        core.serve_until(0, now);
        let Submitted::Queued(high) = core.submit(of(1, High), now).unwrap() else { continue };
        let served = core.serve_until(now, now + 250 * MS);
        let at = served.iter().find(|(_, ticket)| *ticket == high).unwrap().0;
        assert!(at - now <= 200 * MS, "{}", at - now);
        now += 250 * MS;
    }
}

#[test]
fn high_request_takes_permits_that_are_too_few_for_a_costly_normal_request() {
    let mut core = core(BUCKET, &[quota(20, 10_000, 10)]);
    assert!(core.takes(costing(10), 0));
    core.queued(costing(10), 0);
    assert!(!core.takes(one(), 3 * SECOND) && core.takes(of(1, High), 3 * SECOND));
}

#[test]
fn overtaken_waiter_is_refused_within_10_ms() {
    for rule in [BUCKET, WINDOW] {
        let settings = CoreSettings { lower_share: Some(0), ..CoreSettings::new(rule) };
        let limits = if rule == BUCKET { quota(2, 1_000, 1) } else { quota(1, 1_000, 1) };
        let mut core = Core::new(&[limits], settings);
        core.supply.quotas.leave(0, 0);
        let low = [3_500, 5_500, 60_000].map(|deadline| core.queued(of(1, Low).by(deadline * MS), 0));
        let mut refused_behind = Vec::new();
        for number in 1..=5 {
            core.queued(of(1, High), 0);
            let now = number * 10 * MS;
            refused_behind.extend(core.run(now, now).iter().map(|(_, ticket)| (number, *ticket)));
        }
        // Behind 3 high requests, the first would get its permit at 4 s. Behind 5, the second would get its own at 6 s.
        assert_eq!(refused_behind, [(3, low[0]), (5, low[1])], "{rule:?}");
    }
}

#[test]
fn waiter_is_refused_if_higher_requests_take_the_permits_that_it_waits_for() {
    let settings = CoreSettings { lower_share: Some(0), ..CoreSettings::new(BUCKET) };
    let mut core = Core::new(&[quota(11, 1_000, 10)], settings);
    core.supply.quotas.leave(0, 0);
    let low = core.queued(of(10, Low).within(0, 10 * SECOND), 0);
    assert!(core.takes(of(1, High), SECOND));
    assert_eq!(core.run(SECOND + 10 * MS, SECOND + 10 * MS), [(SECOND + 10 * MS, low)]);
    assert!(matches!(core.status(low, SECOND + 10 * MS), Status::Refused(_)));
}

#[test]
fn credit_of_a_low_request_counts_in_its_forecast() {
    let mut core = refilling(1, 1);
    (0..100).for_each(|_| _ = core.queued(of(1, High), 0));
    let low = core.queued(of(1, Low).within(0, 12 * SECOND), 0);
    let mut served = Vec::new();
    for second in 1..=12 {
        served.extend(core.serve_until((second - 1) * SECOND, second * SECOND));
        core.queued(of(1, High), second * SECOND);
    }
    assert!(served.iter().any(|(_, ticket)| *ticket == low));
}

#[test]
fn lower_priorities_do_not_fill_the_queue_of_a_higher_one() {
    let mut core = refilling(1, 1);
    let short = |priority| Ask { max_queue: 1, ..of(1, priority) };
    core.queued(short(Low), 0);
    assert_eq!(core.refused(short(Low), 0).0, Reason::QueueFull);
    core.queued(short(High), 0);
}
