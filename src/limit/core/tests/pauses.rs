//! Tests of pauses: delays beyond the longest pause and their probes, and throttled responses without a delay.

use super::{
    feedback::{accepted, throttled},
    *,
};
use crate::policy::adaptive::Acceptance;
use crate::test_util::limiter::remaining;

const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * 3_600;

fn respond(core: &mut Core, grant: Grant, feedback: &Feedback, now: u64) {
    core.finished(grant, End::Response(feedback, grant.at), &Taken::default(), now);
}

/// Submits a request and cancels it. Returns when it would have left, in milliseconds.
fn next_grant(core: &mut Core, now: u64) -> u64 {
    match core.submit(one(), now).unwrap() {
        Submitted::Granted(grant) => {
            core.finished(grant, End::Unsent, &Taken::default(), now);
            grant.at / MS
        }
        Submitted::Queued(ticket) => {
            let due = core.next_wake(now).unwrap();
            assert_eq!(core.serve_until(now, due), [(due, ticket)], "the wake grants the request");
            core.cancel(ticket, due);
            due / MS
        }
    }
}

fn ample() -> Core {
    core(PACED, &[quota(1_000, 1_000, 500)])
}

/// Returns limiters of each kind. The server requested a delay of ten hours at 0.
fn paused_for_ten_hours() -> [Core; 3] {
    [ample(), core(BUCKET, &[]), core(Rule::Learned, &[])].map(|mut core| {
        let grant = core.try_submit(one(), 0).unwrap();
        respond(&mut core, grant, &throttled(Some(10 * HOUR), Vec::new()), 0);
        core
    })
}

#[test]
fn limiter_without_a_quota_starts_slowly_after_a_throttled_response_without_a_delay() {
    let mut core = core(BUCKET, &[]);
    let grant = core.try_submit(one(), 0).unwrap();
    respond(&mut core, grant, &throttled(None, Vec::new()), 0);
    (0..4).for_each(|_| _ = core.queued(one(), 0));
    let at: Vec<_> = core.serve_until(0, 9 * SECOND).iter().map(|(at, _)| at / MS).collect();
    assert_eq!(at, [1_000, 1_100, 1_150, 1_200]);
}

#[test]
fn calls_fail_at_once_with_the_stated_delay_if_it_exceeds_the_longest_pause() {
    for mut core in paused_for_ten_hours() {
        assert_eq!(core.take_begun_pause(), Some(BegunPause { length: 10 * HOUR, probe_after: Some(HOUR) }));
        let wait = |now| (Reason::MaxWait, Some((10 * HOUR - now) / MS));
        for now in [0, SECOND, HOUR - 1] {
            assert_eq!(core.refused(one().within(now, 10 * HOUR - now - 1), now), wait(now));
            assert_eq!(refused(&core.try_submit(one(), now).unwrap_err()), wait(now));
            assert!(!core.refuses_all(), "a probe leaves before the end of the refusal");
        }
        let snapshot = core.snapshot(SECOND);
        assert_eq!((snapshot.paused_until, snapshot.probe_at), (Some(10 * HOUR), Some(HOUR)));
        assert_eq!((snapshot.available, core.snapshot(HOUR).available), (0, 1));
        let probe = core.try_submit(one().within(HOUR, 0), HOUR).unwrap();
        assert!(!core.is_expired(probe.at, HOUR), "the probe may leave although the pause continues");
        assert_eq!(core.refused(one().within(HOUR, HOUR), HOUR), wait(HOUR));
        assert_eq!(core.snapshot(HOUR).probe_at, Some(2 * HOUR));
        assert_eq!(core.take_begun_pause(), None, "one event for one pause");
        assert_eq!(next_grant(&mut core, HOUR + SECOND), 2 * HOUR / MS);
    }
}

#[test]
fn response_to_the_probe_of_a_long_pause_ends_or_replaces_the_pause() {
    let (hour, second) = (HOUR / MS, 1_000);
    let unavailable = Feedback { acceptance: Acceptance::Unavailable, ..accepted(Vec::new()) };
    let long = throttled(Some(20 * HOUR), Vec::new());
    for (end, next) in [
        (Some(accepted(Vec::new())), hour + second),
        (Some(long), 2 * hour + second),
        (Some(throttled(Some(5 * SECOND), Vec::new())), hour + 6 * second),
        (Some(throttled(None, Vec::new())), 2 * hour),
        (Some(unavailable), 2 * hour),
        (None, 2 * hour),
    ] {
        for mut core in paused_for_ten_hours() {
            let probe = core.try_submit(one(), HOUR).unwrap();
            core.take_begun_pause();
            let now = HOUR + SECOND;
            match &end {
                Some(feedback) => respond(&mut core, probe, feedback, now),
                None => _ = core.finished(probe, End::Unconfirmed, &Taken::default(), now),
            }
            assert_eq!(next_grant(&mut core, now), next, "{end:?}");
            let is_long = end.as_ref().is_some_and(|end| end.pause == Some(20 * HOUR));
            assert_eq!(core.take_begun_pause().is_some_and(|begun| begun.probe_after.is_some()), is_long);
        }
    }
    for (end, next) in [(End::Unsent, hour + second), (End::Elsewhere, 2 * hour)] {
        for mut core in paused_for_ten_hours() {
            let probe = core.try_submit(one(), HOUR).unwrap();
            core.finished(probe, end, &Taken::default(), HOUR + SECOND);
            assert_eq!(next_grant(&mut core, HOUR + SECOND), next, "{end:?}");
        }
    }
}

#[test]
fn response_to_an_earlier_request_neither_ends_nor_shortens_a_long_pause() {
    for feedback in [accepted(Vec::new()), throttled(Some(SECOND), Vec::new())] {
        let mut core = ample();
        let [first, same, late] = [(); 3].map(|()| core.try_submit(one(), 0).unwrap());
        respond(&mut core, first, &throttled(Some(10 * HOUR), Vec::new()), 0);
        assert!(core.take_begun_pause().is_some());
        respond(&mut core, same, &throttled(Some(10 * HOUR), Vec::new()), 0);
        assert_eq!(core.take_begun_pause(), None, "the same pause");
        respond(&mut core, late, &feedback, SECOND);
        assert_eq!(next_grant(&mut core, SECOND), HOUR / MS);
        assert_eq!(core.snapshot(SECOND).paused_until, Some(10 * HOUR));
    }
}

#[test]
fn waiters_without_bounds_wait_for_the_probe_and_leave_after_it() {
    for mut core in paused_for_ten_hours() {
        let waiters = [(); 3].map(|()| core.queued(one(), SECOND));
        let bounded = core.queued(one().by(11 * HOUR), SECOND);
        assert_eq!(core.serve_until(SECOND, HOUR + SECOND), [(HOUR, waiters[0])], "one probe");
        let probe = Grant::new(HOUR, NonZeroU32::MIN);
        respond(&mut core, probe, &accepted(Vec::new()), HOUR + SECOND);
        let served: Vec<_> = core.serve_until(HOUR + SECOND, 2 * HOUR).iter().map(|(_, it)| *it).collect();
        assert_eq!(served, [waiters[1], waiters[2], bounded]);
    }
}

#[test]
fn long_pause_ends_at_the_stated_end_without_a_response() {
    let mut core = core(BUCKET, &[]);
    let grant = core.try_submit(one(), 0).unwrap();
    respond(&mut core, grant, &throttled(Some(HOUR + HOUR / 2), Vec::new()), 0);
    assert!(core.takes(one(), HOUR) && !core.takes(one(), HOUR + HOUR / 2 - 1));
    assert!(core.takes(one(), HOUR + HOUR / 2) && core.snapshot(2 * HOUR).paused_until.is_none());
}

#[test]
fn reset_of_an_empty_quota_beyond_the_longest_pause_is_a_stated_delay() {
    let month = |is_throttled: bool| match is_throttled {
        true => throttled(None, remaining(0, 30 * DAY)),
        false => accepted(remaining(0, 30 * DAY)),
    };
    for (mut core, is_throttled) in
        [(ample(), true), (core(BUCKET, &[]), false), (core(Rule::Learned, &[]), true)]
    {
        let grant = core.try_submit(one(), 0).unwrap();
        respond(&mut core, grant, &month(is_throttled), 0);
        assert_eq!(core.refused(one().within(0, HOUR), 0), (Reason::MaxWait, Some(30 * DAY * 1_000)));
        let probe = core.try_submit(one(), HOUR).unwrap();
        assert!(!core.takes(one(), HOUR + SECOND));
        respond(&mut core, probe, &accepted(Vec::new()), HOUR + SECOND);
        assert!(core.takes(one(), HOUR + SECOND));
    }
    // A quota with remaining permits limits the requests for at most the longest pause.
    let mut core = core(BUCKET, &[]);
    let grant = core.try_submit(one(), 0).unwrap();
    respond(&mut core, grant, &accepted(remaining(1, 30 * DAY)), 0);
    assert!(core.takes(one(), 0) && !core.takes(one(), HOUR - 1) && core.takes(one(), HOUR));
}

#[test]
fn only_pauses_of_responses_are_bounded() {
    let mut core = ample();
    core.pause(10 * HOUR, 0);
    assert_eq!(next_grant(&mut core, 0), 10 * HOUR / MS);
    for mut core in paused_for_ten_hours() {
        core.resume(SECOND);
        assert_eq!((next_grant(&mut core, SECOND), core.snapshot(SECOND).probe_at), (1_000, None));
    }
}

/// Lets a request leave now, which the server throttles after `latency` without a delay. Returns the pause that
/// follows, in milliseconds.
fn throttle_bare(core: &mut Core, latency: u64, now: u64) -> u64 {
    let grant = core.try_submit(one(), now).unwrap();
    respond(core, grant, &throttled(None, Vec::new()), now + latency);
    next_grant(core, now + latency) - (now + latency) / MS
}

#[test]
fn throttled_response_without_a_delay_pauses_twice_as_long_each_time() {
    let mut core = ample();
    let mut now = 0;
    let pauses: Vec<_> = (0..11)
        .map(|_| {
            let pause = throttle_bare(&mut core, 10 * MS, now);
            let begun = core.take_begun_pause().unwrap();
            assert_eq!((begun.length / MS, begun.probe_after), (pause, None));
            now += 10 * MS + pause * MS;
            pause / 1_000
        })
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    let grant = core.try_submit(one(), now).unwrap();
    respond(&mut core, grant, &accepted(Vec::new()), now);
    assert!(!core.reads_all(now));
    assert_eq!(throttle_bare(&mut core, 0, now), 1_000, "an accepted response ends the doubling");
}

#[test]
fn late_response_to_a_request_before_the_pause_neither_doubles_nor_resets_it() {
    let mut core = ample();
    let [first, throttles, accepts] = [(); 3].map(|()| core.try_submit(one(), 0).unwrap());
    respond(&mut core, first, &throttled(None, Vec::new()), 0);
    respond(&mut core, throttles, &throttled(None, Vec::new()), 500 * MS);
    assert_eq!(core.snapshot(500 * MS).paused_until, Some(1_500 * MS));
    respond(&mut core, accepts, &accepted(Vec::new()), 600 * MS);
    assert!(core.reads_all(600 * MS), "the limiter waits for a later response");
    assert_eq!(throttle_bare(&mut core, 0, 1_500 * MS), 2_000);
}

#[test]
fn pause_after_a_throttled_response_can_be_set_and_switched_off() {
    for (throttled, expected) in [(0, [0, 0, 0]), (60, [60, 120, 240]), (300, [300, 300, 300])] {
        let pauses = PauseSettings::DEFAULT.with_throttled(Duration::from_secs(throttled)).unwrap();
        let settings = CoreSettings { pauses, ..CoreSettings::new(PACED) };
        let mut core = Core::new(&[quota(1_000, 1_000, 500)], settings);
        let mut now = 0;
        for pause in expected {
            assert_eq!(throttle_bare(&mut core, 0, now), pause * 1_000);
            now += pause * SECOND;
        }
    }
}

#[test]
fn only_throttled_responses_pause_without_a_delay() {
    assert_eq!(throttle_bare(&mut core(BUCKET, &[]), 0, 0), 1_000, "also without a quota");
    assert_eq!(
        throttle_bare(&mut core(Rule::Learned, &[]), 0, 0),
        100,
        "the first wait of an adaptive limiter"
    );
    let unavailable = Feedback { acceptance: Acceptance::Unavailable, ..accepted(Vec::new()) };
    for (feedback, next) in [
        (unavailable, 0),
        (throttled(Some(200 * MS), Vec::new()), 200),
        (throttled(None, remaining(0, 9)), 9_000),
        (throttled(None, remaining(3, 9)), 1_000),
        (throttled(None, remaining(0, 0)), 1_000),
    ] {
        let mut core = ample();
        let grant = core.try_submit(one(), 0).unwrap();
        respond(&mut core, grant, &feedback, 0);
        assert_eq!(next_grant(&mut core, 0), next, "{feedback:?}");
    }
}
