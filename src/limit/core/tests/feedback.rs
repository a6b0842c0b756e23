//! Tests of pauses, server limits, changes of quotas and learned rates.

use super::*;
use crate::policy::{Remaining, adaptive::Acceptance, rate_limit};
use crate::test_util::limiter::remaining;

pub(super) fn accepted(remaining: Vec<Remaining>) -> Feedback {
    Feedback {
        acceptance: Acceptance::Accepted,
        is_success: true,
        pause: None,
        remaining,
        others: Vec::new(),
    }
}

pub(super) fn throttled(pause: Option<u64>, remaining: Vec<Remaining>) -> Feedback {
    Feedback { acceptance: Acceptance::Throttled, is_success: false, pause, ..accepted(remaining) }
}

fn taken(core: &mut Core, now: u64) -> u32 {
    (0..1_000).map(|_| u32::from(core.takes(one(), now))).sum()
}

#[test]
fn unlimited_limiter_starts_slowly_after_a_pause_that_is_never_shortened() {
    let mut core = core(BUCKET, &[]);
    core.pause(3 * SECOND, 0);
    (0..10).for_each(|_| _ = core.queued(one(), 0));
    core.pause(5 * SECOND, SECOND);
    core.pause(2 * SECOND, SECOND);
    let refusal = core.submit(one().within(SECOND, 0), SECOND).unwrap_err();
    assert_eq!(refusal.wait(), Some(Duration::from_micros(4_337_500)));
    let times: Vec<_> = core.serve_until(SECOND, 9 * SECOND).iter().map(|(at, _)| at / 100_000).collect();
    assert_eq!(times, [50_000, 51_000, 51_500, 52_000, 52_250, 52_500, 52_750, 53_000, 53_125, 53_250]);
    assert_eq!(taken(&mut core, 7 * SECOND), 1_000, "the slow start ends 2 s after the pause");
    core.pause(8 * SECOND, 9 * SECOND);
    assert_eq!(taken(&mut core, 9 * SECOND), 1_000, "a pause that ends in the past");
}

#[test]
fn queue_leaves_at_the_rate_of_the_quota_after_a_pause() {
    let mut core = core(BUCKET, &[quota(11, 10_000, 1)]);
    core.pause(5 * SECOND, 0);
    (0..3).for_each(|_| _ = core.queued(one(), 0));
    let times: Vec<_> = core.serve_until(0, 9 * SECOND).iter().map(|(at, _)| at / SECOND).collect();
    assert_eq!(times, [5, 6, 7]);
    core.pause(99 * SECOND, 9 * SECOND);
    core.queued(one(), 9 * SECOND);
    assert_eq!(core.snapshot(9 * SECOND).paused_until, Some(99 * SECOND));
    core.resume(10 * SECOND);
    assert!(core.pop_woken().is_some(), "a waiter gets its permit when the pause is lifted");
}

#[test]
fn remaining_permits_limit_grants_until_their_reset() {
    let mut core = core(BUCKET, &[]);
    let grants: Vec<_> = (0..4).map(|_| core.try_submit(one(), 0).unwrap()).collect();
    core.finished(grants[0], End::Response(&accepted(remaining(10, 60)), 0), &Taken::default(), SECOND);
    // Three requests are in flight.
    assert_eq!(taken(&mut core, SECOND), 7);
    core.finished(grants[1], End::Response(&accepted(remaining(50, 60)), 0), &Taken::default(), SECOND);
    assert_eq!(taken(&mut core, SECOND), 0, "an older response does not raise the number");
    assert!(!core.is_expired(SECOND, SECOND));
    core.finished(grants[2], End::Response(&accepted(remaining(0, 60)), 0), &Taken::default(), SECOND);
    assert!(core.is_expired(SECOND, SECOND), "no permits remain");
    assert_eq!(taken(&mut core, 60 * SECOND), 0);
    // The slow start begins with the highest number reported.
    assert_eq!(taken(&mut core, 61 * SECOND), 50);
}

#[test]
fn unconfirmed_request_counts_against_the_remaining_permits_for_10_seconds() {
    for (end, after, expected) in
        [(End::Unconfirmed, 0, 4), (End::Unconfirmed, 11, 5), (End::Elsewhere, 0, 5), (End::Unsent, 0, 5)]
    {
        let mut core = core(BUCKET, &[]);
        let grants: Vec<_> = (0..2).map(|_| core.try_submit(one(), 0).unwrap()).collect();
        core.finished(grants[0], end, &Taken::default(), 0);
        let now = after * SECOND;
        core.finished(grants[1], End::Response(&accepted(remaining(5, 60)), now), &Taken::default(), now);
        assert_eq!(taken(&mut core, now), expected, "{end:?} {after} s ago");
    }
}

#[test]
fn limiter_with_a_quota_obeys_the_remaining_permits_of_throttled_responses() {
    for (obeys_remaining, is_throttled, expected) in [(false, false, 99), (false, true, 2), (true, false, 2)]
    {
        let settings = CoreSettings { obeys_remaining, ..CoreSettings::new(WINDOW) };
        let mut core = Core::new(&[quota(100, 10_000, 1)], settings);
        let grant = core.try_submit(one(), 0).unwrap();
        let headers = remaining(2, 5);
        let feedback = if is_throttled { throttled(None, headers) } else { accepted(headers) };
        core.finished(grant, End::Response(&feedback, 0), &Taken::default(), 0);
        // A throttled response without a delay also pauses the limiter for a second.
        assert_eq!(taken(&mut core, SECOND), expected);
    }
}

#[test]
fn spent_permits_count_after_a_change_of_quotas() {
    let (before, after) = (quota(20, 10_000, 10), quota(40, 10_000, 20));
    let mut bucket = core(BUCKET, &[before]);
    assert!(bucket.takes(costing(8), 0));
    bucket.set_quotas(&[after], 0);
    assert_eq!(bucket.snapshot(0).available, 2, "a larger burst becomes available gradually");
    assert_eq!(bucket.snapshot(5 * SECOND).available, 12);

    let mut bucket = core(BUCKET, &[before]);
    assert!(bucket.takes(costing(10), 0));
    bucket.queued(costing(6), 0);
    bucket.set_quotas(&[quota(80, 10_000, 8)], 0);
    // Ten permits are spent, two more than the new burst of eight, and the waiter needs six. The bucket must therefore
    // refill eight permits, one every 10 s / 72.
    assert_eq!(bucket.serve_until(0, 9 * SECOND)[0].0 / MS, 1_111);

    let mut window = core(WINDOW, &[before]);
    assert!(window.takes(costing(15), 0));
    window.set_quotas(&[quota(16, 10_000, 1)], 0);
    assert_eq!(window.snapshot(0).available, 1);
}

/// A grant after a late timer is backdated within the margin. A smaller margin must not shorten the window.
#[test]
fn smaller_margin_after_a_late_timer_exceeds_no_window() {
    let quota = Quota::new(10, Duration::from_secs(60)).unwrap();
    let mut core = core(WINDOW, &[quota.with_margin(Duration::from_secs(4)).unwrap()]);
    assert!(core.takes(costing(10), 0));
    let late = core.queued(costing(10), 0);
    core.advance(65 * SECOND);
    assert!(matches!(core.status(late, 65 * SECOND), Status::Granted(_)));
    core.set_quotas(&[quota.without_margin()], 65 * SECOND);
    let wait = core.try_submit(one(), 65 * SECOND).unwrap_err().wait().unwrap();
    assert!(wait >= Duration::from_secs(60), "{wait:?}");
}

#[test]
fn limiter_is_idle_if_nothing_of_its_state_matters() {
    let mut core = core(PACED, &[quota(10, 1_000, 2)]);
    assert!(core.is_idle(0));
    let grant = core.try_submit(one(), 0).unwrap();
    assert!(!core.is_idle(1_000 * MS) && core.is_idle(1_001 * MS));
    core.pause(5 * SECOND, 2 * SECOND);
    assert!(!core.is_idle(4 * SECOND));
    core.finished(grant, End::Unconfirmed, &Taken::default(), 4 * SECOND);
    assert!(!core.is_idle(14 * SECOND) && core.is_idle(15 * SECOND));
}

/// Returns a limiter whose probe is in flight, and the probe.
fn probing() -> (Core, Grant) {
    let mut core = core(Rule::Learned, &[]);
    let grant = core.try_submit(one(), 0).unwrap();
    core.finished(grant, End::Response(&throttled(Some(SECOND), Vec::new()), 0), &Taken::default(), 0);
    assert!(!core.takes(one(), SECOND - 1));
    let probe = core.try_submit(one(), SECOND).unwrap();
    assert!(!core.takes(one(), SECOND), "nothing else leaves before the response");
    (core, probe)
}

#[test]
fn waiter_behind_the_first_is_refused_at_its_bound_while_a_probe_is_in_flight() {
    let (mut core, _) = probing();
    core.queued(one(), SECOND);
    let bounded = core.queued(one().within(SECOND, 700 * MS), SECOND);
    let refused: Vec<_> = core.run(SECOND, 3 * SECOND).iter().map(|(at, it)| (at / MS, *it)).collect();
    assert_eq!(refused, [(1_700, bounded)]);
}

/// The permits of a quota that ends begin a slow start, in which a request for two permits is not the first.
#[test]
fn joint_request_is_due_only_if_its_permits_can_be_taken() {
    let mut core = core(BUCKET, &[]);
    let grant = core.try_submit(one(), 0).unwrap();
    core.finished(grant, End::Response(&accepted(remaining(1, 60)), 0), &Taken::default(), SECOND);
    let ticket = core.join(&costing(2), true, SECOND).unwrap();
    let now = 61 * SECOND;
    core.advance(now);
    let is_due = core.turn(ticket, now).unwrap();
    assert_eq!(is_due, matches!(core.status(ticket, now), Status::Granted(_)));
    assert_eq!(core.run(now, now + SECOND), [(now + 100 * MS, ticket)]);
}

#[test]
fn accepted_probe_releases_the_waiters_in_a_slow_start() {
    let (mut core, probe) = probing();
    let waiters: Vec<_> = (0..3).map(|_| core.queued(one(), SECOND)).collect();
    core.finished(probe, End::Response(&accepted(Vec::new()), SECOND), &Taken::default(), 2 * SECOND);
    let served = core.serve_until(2 * SECOND, 9 * SECOND);
    assert_eq!(served.iter().map(|(at, _)| at / (10 * MS)).collect::<Vec<_>>(), [200, 210, 215]);
    assert_eq!(served.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), waiters);
}

#[test]
fn next_waiter_becomes_the_probe_if_a_probe_gets_no_response() {
    for (end, latest) in [(Some(End::Unconfirmed), 2), (Some(End::Unsent), 1), (None, 11)] {
        let (mut core, probe) = probing();
        let waiter = core.queued(one(), SECOND);
        if let Some(end) = end {
            core.finished(probe, end, &Taken::default(), SECOND);
        }
        let served = core.serve_until(SECOND, 20 * SECOND);
        assert_eq!(served.len(), 1);
        assert!(served[0].1 == waiter && served[0].0 <= latest * SECOND, "{end:?}: {served:?}");
    }
}

#[test]
fn waiter_behind_a_probe_is_refused_at_its_bound() {
    for wait in [0, 1, 700] {
        let (mut core, _) = probing();
        let waiter = core.queued(one().within(SECOND, wait * MS), SECOND);
        let woken = core.run(SECOND, 2 * SECOND);
        assert_eq!(woken, [(SECOND + wait * MS + 1, waiter)]);
        assert!(matches!(core.status(waiter, 2 * SECOND), Status::Refused(_)));
    }
}

#[test]
fn permit_granted_before_a_throttled_response_expires() {
    let mut core = core(Rule::Learned, &[]);
    let grants = [(); 2].map(|()| core.try_submit(one(), 0).unwrap());
    let learned =
        core.finished(grants[0], End::Response(&throttled(None, Vec::new()), 0), &Taken::default(), MS);
    assert_eq!(learned, None, "no rate is known");
    assert!(core.is_expired(grants[1].at, MS));
}

#[test]
fn slow_start_does_not_grow_during_a_pause() {
    let mut core = core(Rule::Learned, &[]);
    core.pause(SECOND, 0);
    (0..10_000).for_each(|_| _ = core.queued(one(), MS));
    for now in (0..=100).map(|step| step * 10 * MS) {
        core.advance(now);
    }
    assert_eq!(core.snapshot(SECOND).granted, 10);
}

#[test]
fn learned_rate_is_reported_with_the_next_response() {
    let mut core = core(Rule::Learned, &[]);
    let grants: Vec<_> = (0..3).map(|_| core.try_submit(one(), 0).unwrap()).collect();
    let mut headers = http::HeaderMap::new();
    let fields = [("x-ratelimit-limit", 600), ("x-ratelimit-remaining", 590), ("x-ratelimit-reset", 60)];
    headers.extend(fields.map(|(name, value)| (http::HeaderName::from_static(name), value.into())));
    let report = accepted(rate_limit::remaining(&headers, &[], || std::time::SystemTime::UNIX_EPOCH));
    assert!(core.finished(grants[0], End::Response(&report, 0), &Taken::default(), MS).is_some());
    // A quota below the learned rate lowers it. The end of an unsent request reports nothing.
    core.set_quotas(&[quota(60, 60_000, 1)], 2 * MS);
    assert!(core.finished(grants[1], End::Unsent, &Taken::default(), 3 * MS).is_none());
    assert!(
        core.finished(grants[2], End::Response(&accepted(Vec::new()), 0), &Taken::default(), 4 * MS)
            .is_some()
    );
}
