use proptest::prelude::*;

use super::*;
use crate::policy::{Remaining, head_of, remaining};

const MILLI: u64 = SECOND / 1_000;

fn progress(accepted: u64, in_flight: u64) -> Progress {
    Progress { accepted, in_flight }
}

fn response(acceptance: Acceptance, at: u64) -> Observation<'static> {
    Observation { acceptance, granted_at: at, sent_at: at, requested_pause: None, remaining: &[] }
}

/// Parses the headers of a quota with `limit` permits per `window` seconds, of which `left` remain.
fn quota(limit: u64, window: u64, left: u64) -> Vec<Remaining> {
    named_quota("a", limit, window, left)
}

fn named_quota(name: &str, limit: u64, window: u64, left: u64) -> Vec<Remaining> {
    let item = format!("\"{name}\";r={left};t={window}");
    let policy = format!("\"{name}\";q={limit};w={window}");
    let headers = head_of([("ratelimit", item.as_bytes()), ("ratelimit-policy", policy.as_bytes())]);
    remaining(&headers, &[], || panic!("the clock was read"))
}

/// Returns a learner that accepted 100 requests in the first second, and then received a throttled response.
fn throttled() -> Learner {
    let mut learner = Learner::new(f64::INFINITY);
    learner.grant(1, progress(0, 0), 0);
    let pause = learner.observe(&response(Acceptance::Throttled, SECOND - 1), progress(100, 1), SECOND);
    assert_eq!(pause, Some(SECOND + FIRST_WAIT));
    learner
}

/// Returns the learner of [`throttled`] after its probe was accepted at 2 s. The rate is then 50 per second.
fn reopened() -> Learner {
    let mut learner = throttled();
    learner.grant(1, progress(100, 0), SECOND * 3 / 2);
    learner.observe(&response(Acceptance::Accepted, SECOND * 3 / 2), progress(100, 0), 2 * SECOND);
    assert_eq!(learner.rate, Some(50.0));
    learner
}

#[test]
fn first_rate_is_the_accepted_requests_per_second_until_the_pause_ends() {
    let learner = reopened();
    assert_eq!(learner.source, LearnedFrom::Throttling);
    assert_eq!(learner.throttled_at, Some(SECOND));
    // The first request leaves one interval after the probe's response.
    assert_eq!(learner.due(2 * SECOND, 1, 1), 2 * SECOND + 20 * MILLI);
    assert_eq!(learner.due(2 * SECOND, 10, 1), 2 * SECOND + 200 * MILLI);
}

#[test]
fn learner_estimates_no_rate_from_fewer_than_ten_accepted_requests() {
    for (accepted, rate, reopened_at) in [(9, None, 8 * SECOND), (10, Some(1.25), 0)] {
        let mut learner = Learner::new(f64::INFINITY);
        learner.grant(1, progress(0, 0), 0);
        learner.observe(&response(Acceptance::Throttled, 1), progress(0, 1), SECOND);
        learner.grant(1, progress(0, 0), 7 * SECOND);
        learner.observe(&response(Acceptance::Accepted, 7 * SECOND), progress(accepted, 0), 8 * SECOND);
        assert_eq!((learner.rate, learner.reopened_at), (rate, reopened_at));
        assert!(!learner.is_probing());
    }
}

#[test]
fn header_quota_sets_the_rate_with_a_margin_of_two_percent() {
    let mut learner = Learner::new(f64::INFINITY);
    let headers = quota(102, 1, 101);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
    assert_eq!(learner.observe(&observation, progress(1, 0), 0), None);
    assert_eq!(learner.rate, Some(100.0));
    assert_eq!(
        (learner.source, learner.quota()),
        (LearnedFrom::Headers, Some((102, Duration::from_secs(1))))
    );
    assert_eq!(learner.available(SECOND), 3, "the burst is a fiftieth of the limit, rounded up");
}

#[test]
fn slowest_of_several_header_quotas_sets_the_rate() {
    let mut learner = Learner::new(f64::INFINITY);
    for (limit, window) in [(1_000, 60), (51, 1), (10, 86_400), (102, 60)] {
        let headers = named_quota(&limit.to_string(), limit, window, 1);
        let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
        learner.observe(&observation, progress(1, 0), 0);
    }
    // The daily quota only applies through its throttled responses.
    assert_eq!(learner.quota(), Some((102, Duration::from_secs(60))));
}

#[test]
fn configured_quota_is_the_ceiling_and_headers_matter_only_after_a_throttled_response() {
    let mut learner = Learner::new(10.0);
    let headers = quota(102, 1, 50);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
    learner.observe(&observation, progress(1, 0), 0);
    assert_eq!(learner.rate, None);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Throttled, 1) };
    learner.observe(&observation, progress(1, 0), 1);
    assert!(learner.reads_headers());
    assert_eq!(learner.rate, Some(9.8), "0.98 of the ceiling");
}

#[test]
fn throttled_responses_of_one_event_cut_the_rate_once() {
    let mut learner = reopened();
    for seconds in [3, 4, 5] {
        // All three requests were granted before the first throttled response arrived.
        let late =
            Observation { requested_pause: Some(SECOND), ..response(Acceptance::Throttled, 3 * SECOND - 1) };
        learner.observe(&late, progress(110, 3), seconds * SECOND);
    }
    assert_eq!(learner.rate, Some(35.0), "0.7 of 50");
}

#[test]
fn rate_falls_back_to_the_last_clean_rate() {
    let mut learner = reopened();
    let mut accepted = 100;
    // Two complete runs of the slow start double the rate.
    for seconds in [4, 6] {
        accepted += 200;
        learner.advance(progress(accepted, 0), 1, seconds * SECOND);
    }
    assert_eq!((learner.rate, learner.source), (Some(200.0), LearnedFrom::Success));
    let at = 7 * SECOND;
    learner.observe(&response(Acceptance::Throttled, at), progress(accepted, 1), at);
    assert_eq!(learner.rate, Some(140.0), "0.7 of 200 is more than 0.98 of 100");
    learner.grant(1, progress(accepted, 0), at + SECOND);
    learner.observe(&response(Acceptance::Accepted, at + SECOND), progress(accepted, 0), at + SECOND);
    // A run after a raise that was throttled lasts 20 times the pause, and raises the rate by 2 %.
    learner.advance(progress(accepted + 3_000, 0), 1, at + 20 * SECOND);
    assert_eq!(learner.rate, Some(140.0));
    learner.advance(progress(accepted + 3_000, 0), 1, at + 21 * SECOND);
    assert_eq!(learner.rate, Some(140.0 * 1.02));
    learner.observe(
        &response(Acceptance::Throttled, at + 22 * SECOND),
        progress(accepted, 1),
        at + 22 * SECOND,
    );
    assert_eq!(learner.rate, Some(0.98 * 140.0), "just below the last clean rate");
}

#[test]
fn probe_that_is_throttled_doubles_the_wait_up_to_a_minute_and_then_adds_a_quarter_up_to_15_minutes() {
    let mut learner = throttled();
    let mut now = SECOND + FIRST_WAIT;
    let longest = 15 * 60_000;
    let quarters =
        (0..13).map(|number| (64_000.0 * 1.25_f64.powi(number)) as u64).take_while(|wait| *wait < longest);
    let doubled = [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200];
    for expected in doubled.into_iter().chain(quarters).chain([longest; 2]) {
        assert!(learner.is_free(1, now));
        learner.grant(1, progress(100, 0), now);
        assert!(!learner.is_free(1, now), "only the probe leaves");
        let pause = learner.observe(&response(Acceptance::Throttled, now), progress(100, 1), now).unwrap();
        assert_eq!((pause - now) / MILLI, expected);
        now = pause;
    }
}

#[test]
fn pause_lasts_for_the_requested_delay_or_until_the_reset_of_a_used_up_quota() {
    let now = SECOND;
    let (empty, some) = (quota(100, 30, 0), quota(100, 30, 1));
    let until = |requested_pause: Option<u64>, remaining: &[Remaining]| {
        let acceptance = Acceptance::Throttled;
        let observation = Observation { acceptance, granted_at: 1, sent_at: 1, requested_pause, remaining };
        Learner::new(f64::INFINITY).observe(&observation, progress(0, 1), now)
    };
    assert_eq!(until(Some(7 * SECOND), &empty), Some(8 * SECOND));
    assert_eq!(until(None, &empty), Some(31 * SECOND));
    assert_eq!(until(None, &some), Some(2 * SECOND - 1), "the round trip");
}

#[test]
fn reset_of_a_used_up_quota_is_the_earliest_that_the_server_reported() {
    let mut learner = Learner::new(f64::INFINITY);
    let first = quota(100, 30, 5);
    let observation = Observation { remaining: &first, ..response(Acceptance::Accepted, 0) };
    learner.observe(&observation, progress(1, 0), 0);
    let later = quota(100, 30, 0);
    let observation = Observation { remaining: &later, ..response(Acceptance::Throttled, 1) };
    assert_eq!(learner.observe(&observation, progress(1, 0), SECOND), Some(30 * SECOND));
}

#[test]
fn duplicate_quota_in_a_list_delays_its_reset_by_at_most_a_second() {
    for list in [r#""q";r=0;t=0, "q";r=9;t=946080000"#, r#""q";r=9;t=946080000, "q";r=0;t=0"#] {
        let remaining = &reported(&[("ratelimit", list.as_bytes())])[..];
        assert_eq!(remaining.len(), 2, "{list}");
        let mut learner = Learner::new(f64::INFINITY);
        let until = learner.observe(
            &Observation { remaining, ..response(Acceptance::Throttled, 1) },
            progress(1, 0),
            SECOND,
        );
        assert!(until.is_some_and(|until| until <= 2 * SECOND), "{list}: {until:?}");
    }
}

#[test]
fn lost_probe_is_followed_by_another_after_the_pause() {
    let mut learner = throttled();
    learner.grant(1, progress(100, 0), 2 * SECOND);
    assert_eq!(learner.lose(2 * SECOND - 1, true), None, "an earlier request");
    assert_eq!(learner.lose(2 * SECOND, true), Some(2 * SECOND + FIRST_WAIT));
    assert!(learner.is_free(1, 3 * SECOND));
    learner.grant(1, progress(100, 0), 3 * SECOND);
    assert_eq!(learner.lose(3 * SECOND, false), Some(3 * SECOND), "no wait after a probe that was not sent");
    learner.grant(1, progress(100, 0), 4 * SECOND);
    assert!(!learner.is_free(1, 14 * SECOND - 1) && learner.is_free(1, 14 * SECOND), "without a response");
}

/// Completes a request with this kind of response and the next probe with an accepted one. Returns the pause's end.
fn pause_once(learner: &mut Learner, acceptance: Acceptance, accepted: u64, now: u64) -> Option<u64> {
    let pause = learner.observe(&response(acceptance, now), progress(accepted, 1), now);
    learner.grant(1, progress(accepted, 0), now + 1);
    learner.observe(&response(Acceptance::Accepted, now + 1), progress(accepted, 0), now + 1);
    pause
}

#[test]
fn throttles_on_503_without_headers_only_after_an_accepted_request() {
    let mut learner = Learner::new(f64::INFINITY);
    for accepted in [0, 1] {
        let pause = learner.observe(&response(Acceptance::Unavailable, 1), progress(accepted, 1), 1);
        assert_eq!(pause.is_some(), accepted > 0);
    }
}

#[test]
fn rate_is_restored_if_503s_continue_after_six_cuts() {
    let mut learner = reopened();
    let mut rate = |seconds: u64| {
        pause_once(&mut learner, Acceptance::Unavailable, 100 + seconds, seconds * SECOND);
        (learner.rate.unwrap() * 10.0).round() / 10.0
    };
    assert_eq!([3, 4, 5, 6, 7, 8].map(&mut rate), [35.0, 24.5, 17.2, 12.0, 8.4, 5.9]);
    // The learner ignores further 503s for 60 s.
    assert_eq!([9, 10, 68].map(&mut rate), [50.0, 50.0, 50.0]);
    assert_eq!(rate(69), 35.0);
}

#[test]
fn complete_run_resets_the_count_of_cuts_by_503s() {
    let mut learner = reopened();
    let mut accepted = 1_000;
    for seconds in (3..60).step_by(3) {
        let pause = pause_once(&mut learner, Acceptance::Unavailable, accepted, seconds * SECOND);
        assert!(pause.is_some(), "after {seconds} s");
        accepted += 1_000_000;
        learner.advance(progress(accepted, 0), 1, (seconds + 2) * SECOND);
    }
}

#[test]
fn second_503_within_a_minute_sets_an_unknown_rate() {
    for (gap, is_estimated) in [(59, true), (62, false)] {
        let mut learner = Learner::new(f64::INFINITY);
        learner.grant(1, progress(0, 0), 0);
        pause_once(&mut learner, Acceptance::Unavailable, 100, SECOND);
        assert_eq!(learner.rate, None);
        pause_once(&mut learner, Acceptance::Unavailable, 200, gap * SECOND);
        assert_eq!(learner.rate.is_some(), is_estimated, "second 503 at {gap} s");
    }
}

#[test]
fn first_rate_ignores_the_requests_before_an_idle_time() {
    let mut learner = Learner::new(f64::INFINITY);
    // One request in 5 s, then a burst.
    for number in 0..10 {
        learner.grant(1, progress(number, 0), number * 5 * SECOND);
    }
    let start = 50 * SECOND;
    learner.grant(1, progress(10, 0), start);
    learner.observe(&response(Acceptance::Throttled, start + 1), progress(110, 1), start + SECOND);
    learner.grant(1, progress(110, 0), start + 2 * SECOND);
    let probe = response(Acceptance::Accepted, start + 2 * SECOND);
    learner.observe(&probe, progress(110, 0), start + 2 * SECOND);
    assert_eq!(learner.rate, Some(50.0), "100 requests in 2 s");
}

#[test]
fn rate_of_a_header_quota_ends_when_the_quota_expires() {
    let mut learner = Learner::new(f64::INFINITY);
    let headers = quota(102, 1, 90);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
    learner.observe(&observation, progress(1, 0), 0);
    learner.advance(progress(1, 0), 1, 2 * SECOND - 1);
    assert_eq!(learner.rate, Some(100.0));
    learner.advance(progress(1, 0), 1, 2 * SECOND);
    assert_eq!((learner.rate, learner.quota()), (None, None));
}

/// The quotas that a server reports in these headers.
fn reported(fields: &[(&'static str, &[u8])]) -> Vec<Remaining> {
    remaining(&head_of(fields.iter().copied()), &[], || panic!("the clock was read"))
}

/// Returns the rate after an accepted response with each list of quotas.
fn rate_after(responses: &[Vec<Remaining>]) -> Option<f64> {
    let mut learner = Learner::new(f64::INFINITY);
    for remaining in responses {
        learner.observe(&Observation { remaining, ..response(Acceptance::Accepted, 0) }, progress(1, 0), 0);
    }
    learner.rate.map(f64::round)
}

#[test]
fn only_a_real_quota_of_requests_sets_a_rate() {
    let tokens: [(_, &[u8]); 3] = [
        ("x-ratelimit-limit-tokens", b"30000"),
        ("x-ratelimit-remaining-tokens", b"0"),
        ("x-ratelimit-reset-tokens", b"30s"),
    ];
    assert_eq!(rate_after(&[reported(&tokens)]), None);
    for (limit, is_real) in [(1_000_000, true), (1_000_001, false), (u64::MAX, false)] {
        assert_eq!(rate_after(&[quota(limit, 1, 1)]).is_some(), is_real, "{limit}");
    }
}

#[test]
fn quota_of_one_resource_sets_no_rate_beside_another_quota() {
    let resource = |name: &'static str, limit: &'static [u8]| {
        reported(&[
            ("x-ratelimit-limit", limit),
            ("x-ratelimit-remaining", b"1"),
            ("x-ratelimit-reset", b"60"),
            ("x-ratelimit-resource", name.as_bytes()),
        ])
    };
    let [core, search, code] =
        [resource("core", b"5999"), resource("search", b"30"), resource("code", b"10")];
    assert_eq!(rate_after(std::slice::from_ref(&search)), Some(0.0));
    assert_eq!(rate_after(&[search.clone(), code.clone()]), None);
    // A rate that follows from resets at most doubles.
    assert_eq!(rate_after(&[search.clone(), core.clone(), code]), Some(1.0));
    assert_eq!(rate_after(&[core, search]), Some(98.0));
}

#[test]
fn quota_of_a_long_window_neither_sets_a_rate_nor_prevents_a_raise() {
    for (window, is_rate) in [(120, true), (121, false), (3_600, false)] {
        let mut learner = Learner::new(f64::INFINITY);
        let headers = quota(100, window, 0);
        let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
        learner.observe(&observation, progress(1, 0), 0);
        learner.observe(&observation, progress(2, 0), 0);
        assert_eq!((learner.rate.is_some(), learner.run.usage.is_used_up), (is_rate, is_rate), "{window} s");
    }
}

#[test]
fn six_probes_with_503_end_the_pause_and_restore_the_rate() {
    let mut learner = reopened();
    let mut now = 3 * SECOND;
    for pauses in 0..7 {
        let pause = learner.observe(&response(Acceptance::Unavailable, now), progress(100, 1), now).unwrap();
        assert_eq!(pause, now + (learner.interval() << pauses));
        now = pause;
        learner.grant(1, progress(100, 0), now);
    }
    assert_eq!(learner.observe(&response(Acceptance::Unavailable, now), progress(100, 1), now), None);
    assert!(!learner.is_probing());
    assert_eq!(learner.rate, Some(50.0));
}

#[test]
fn pause_by_a_503_lasts_at_most_5_s() {
    let mut learner = reopened();
    learner.set(1.0, LearnedFrom::Throttling);
    let mut now = 3 * SECOND;
    for wait in [1, 2, 4, 5, 5, 5].map(|seconds| seconds * SECOND * 10 / 7) {
        let pause = learner.observe(&response(Acceptance::Unavailable, now), progress(100, 1), now).unwrap();
        assert_eq!((pause - now) / MILLI, wait.min(5 * SECOND) / MILLI);
        now = pause;
        learner.grant(1, progress(100, 0), now);
    }
}

#[test]
fn quota_that_the_server_no_longer_reports_expires_one_window_after_its_reset() {
    let mut learner = Learner::new(f64::INFINITY);
    let mut read = |limit: u64, seconds: u64| {
        let headers = named_quota(&limit.to_string(), limit, 10, 1);
        let now = seconds * SECOND;
        let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, now) };
        learner.observe(&observation, progress(1, 0), now);
        learner.quota().map(|(limit, _)| limit)
    };
    assert_eq!([(30, 0), (90, 1), (90, 19)].map(|(limit, at)| read(limit, at)), [Some(30); 3]);
    assert_eq!(read(90, 20), Some(90));
}

#[test]
fn another_limit_with_a_short_reset_at_most_doubles_the_rate() {
    let mut learner = Learner::new(f64::INFINITY);
    for (limit, reset, rate) in
        [("102", "1", 100.0), ("51", "10", 5.0), ("102", "1", 10.0), ("102", "2", 20.0)]
    {
        let lines =
            [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", reset)];
        let headers = head_of(lines.map(|(name, value)| (name, value.as_bytes())));
        let headers = remaining(&headers, &[], || panic!("the clock was read"));
        let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
        learner.observe(&observation, progress(1, 0), 0);
        assert_eq!(learner.rate, Some(rate), "{limit} in {reset} s");
    }
}

#[test]
fn reset_without_a_date_sets_the_window_unless_it_is_below_a_second() {
    let wall = std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_400);
    for (reset, quota) in [(1_700_000_000, None), (1_700_000_001, None), (1_700_000_002, Some(1_600))] {
        let reset = format!("{reset}");
        let headers = head_of([
            ("x-ratelimit-limit", b"100".as_slice()),
            ("x-ratelimit-remaining", b"99"),
            ("x-ratelimit-reset", reset.as_bytes()),
        ]);
        let headers = remaining(&headers, &[], || wall);
        let mut learner = Learner::new(f64::INFINITY);
        let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
        learner.observe(&observation, progress(1, 0), 0);
        assert_eq!(learner.quota().map(|(_, window)| window.as_millis()), quota);
    }
}

#[test]
fn headers_that_show_a_used_up_quota_prevent_a_raise() {
    for (left, rate) in [(4, 100.0), (5, 102.0)] {
        let mut learner = Learner::new(f64::INFINITY);
        for (at, left) in [(0, 101), (1, 50), (2, left)] {
            let headers = quota(102, 1, left);
            let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, at) };
            learner.observe(&observation, progress(at + 1, 0), at);
        }
        learner.advance(progress(150, 0), 1, SECOND * 3 / 2);
        assert_eq!(learner.rate, Some(rate), "{left} remain");
    }
}

/// Takes and ends a request at each of these times, and returns the rate after the last one.
fn serve(learner: &mut Learner, accepted: &mut u64, times: impl Iterator<Item = u64>) -> f64 {
    for now in times {
        let now = learner.due(now, 1, 1);
        learner.advance(progress(*accepted, 0), 1, now);
        learner.grant(1, progress(*accepted, 0), now);
        *accepted += 1;
    }
    learner.rate.unwrap()
}

#[test]
fn only_a_rate_that_was_used_is_raised() {
    // Evenly spaced requests for ten minutes, 50 of which the learned rate allows in a second.
    for (per_second, expected) in [(20, 50.0), (38, 50.0), (45, 100.0)] {
        let (mut learner, mut accepted) = (reopened(), 100);
        let times = (0..600 * per_second).map(|number| 2 * SECOND + number * SECOND / per_second);
        assert_eq!(serve(&mut learner, &mut accepted, times), expected, "{per_second} per second");
    }
}

#[test]
fn bursts_raise_only_a_rate_that_delays_them_for_a_second() {
    // A burst every 10 s, after which the queue is empty.
    for (burst, rates) in [(40, [50.0, 50.0]), (130, [100.0, 100.0])] {
        let (mut learner, mut accepted) = (reopened(), 100);
        for (start, expected) in [10, 20].into_iter().zip(rates) {
            let times = std::iter::repeat_n(start * SECOND, burst);
            assert_eq!(
                serve(&mut learner, &mut accepted, times),
                expected,
                "{burst} requests after {start} s"
            );
        }
    }
}

#[test]
fn raise_is_taken_back_if_less_than_half_of_the_rate_before_it_is_used() {
    for (per_second, expected) in [(20, 50.0), (26, 100.0)] {
        let (mut learner, mut accepted) = (reopened(), 100);
        assert_eq!(serve(&mut learner, &mut accepted, std::iter::repeat_n(2 * SECOND, 60)), 100.0);
        let times = (0..20 * per_second).map(|number| 3_100 * MILLI + number * SECOND / per_second);
        assert_eq!(serve(&mut learner, &mut accepted, times), expected, "{per_second} per second");
    }
}

/// Returns a learner whose server accepted 100 requests in the first second and then blocked for 409 s.
fn blocked() -> (Learner, u64) {
    let mut learner = throttled();
    let mut now = SECOND + FIRST_WAIT;
    while now < 300 * SECOND {
        learner.grant(1, progress(100, 0), now);
        now = learner.observe(&response(Acceptance::Throttled, now), progress(100, 1), now).unwrap();
    }
    learner.grant(1, progress(100, 0), now);
    learner.observe(&response(Acceptance::Accepted, now), progress(101, 0), now);
    (learner, now)
}

#[test]
fn first_rate_after_a_block_assumes_the_longest_window() {
    assert_eq!(blocked().0.rate, Some(101.0 / 61.0));
}

#[test]
fn slow_start_after_a_block_raises_the_rate_by_a_quarter() {
    let (mut learner, start) = blocked();
    let (mut accepted, first) = (101, 101.0 / 61.0);
    let mut rates = vec![];
    for number in 0..1_000 {
        let rate = serve(&mut learner, &mut accepted, std::iter::once(start));
        if rates.last().is_none_or(|(_, last)| *last != rate) {
            rates.push((number, rate));
        }
    }
    // At first, a run lasts a minute. Then it ends after 1.5 times the requests that were accepted before the block.
    let expected = [0, 99, 125, 150, 150, 150].iter().scan(0, |sum, run| {
        *sum += run;
        Some(*sum)
    });
    for ((number, rate), (step, expected)) in rates.iter().zip(expected.enumerate()) {
        assert!((rate / first / 1.25_f64.powi(step as i32) - 1.0).abs() < 1e-9, "{rates:?}");
        assert_eq!(*number, expected, "{rates:?}");
    }
}

#[test]
fn raise_waits_for_20_times_the_pause_of_the_last_failed_raise_until_a_larger_one_is_accepted() {
    let mut learner = reopened();
    let mut accepted = 100;
    serve(&mut learner, &mut accepted, std::iter::repeat_n(2 * SECOND, 60));
    // The raise to 100 per second is throttled, and the pause lasts 10 s.
    let at = 4 * SECOND;
    learner.observe(&response(Acceptance::Throttled, at), progress(accepted, 1), at);
    learner.grant(1, progress(accepted, 0), at + 10 * SECOND);
    learner.observe(
        &response(Acceptance::Accepted, at + 10 * SECOND),
        progress(accepted, 0),
        at + 10 * SECOND,
    );
    let (mut rate, mut from, mut runs) = (learner.rate.unwrap(), at + 10 * SECOND, vec![]);
    while runs.len() < 4 {
        let raised = serve(&mut learner, &mut accepted, std::iter::once(from));
        if raised != rate {
            let now = learner.pacer.arrival;
            runs.push((now - from) / SECOND);
            (rate, from) = (raised, now);
        }
    }
    // The runs before raises of 2 %, 6 % and 18 % are long.
    assert_eq!(runs, [200, 200, 200, 10]);
}

#[test]
fn costly_request_waits_until_its_permits_would_be_refilled() {
    let learner = reopened();
    assert!(!learner.is_free(5, 2 * SECOND + 80 * MILLI) && learner.is_free(5, 2 * SECOND + 100 * MILLI));
}

#[derive(Debug, Clone)]
enum Step {
    Grant(u32),
    Respond { acceptance: Acceptance, age: u64, pause: Option<u64>, headers: Option<(u64, u64, u64)> },
    Lose(bool),
    Resume,
    Ceiling(f64),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let acceptance = prop_oneof![
        4 => Just(Acceptance::Accepted), 1 => Just(Acceptance::Throttled), 1 => Just(Acceptance::Unavailable)
    ];
    let number = || prop_oneof![0..200_u64, any::<u64>()];
    let headers = prop::option::of((number(), number(), number()));
    let response = (acceptance, number(), prop::option::of(number()), headers)
        .prop_map(|(acceptance, age, pause, headers)| Step::Respond { acceptance, age, pause, headers });
    let step = prop_oneof![
        6 => any::<u32>().prop_map(|cost| Step::Grant(cost.max(1))),
        6 => response,
        1 => any::<bool>().prop_map(Step::Lose),
        1 => Just(Step::Resume),
        1 => (1..1_000_u32).prop_map(|rate| Step::Ceiling(f64::from(rate))),
    ];
    let time = prop_oneof![0..2 * SECOND, any::<u64>()];
    prop::collection::vec((time, step), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn learned_rate_stays_between_its_bounds_after_any_sequence(steps in steps()) {
        let (mut learner, mut ceiling) = (Learner::new(f64::INFINITY), f64::INFINITY);
        let (mut now, mut accepted) = (0_u64, 0_u64);
        for (time, step) in steps {
            now = now.saturating_add(time);
            let state = progress(accepted, time % 8);
            learner.advance(state, 1, now);
            match step {
                Step::Grant(cost) => learner.grant(cost, state, now),
                Step::Respond { acceptance, age, pause, headers } => {
                    accepted += u64::from(acceptance == Acceptance::Accepted);
                    let headers = headers.map(|(limit, window, left)| quota(limit, window, left));
                    let at = now.saturating_sub(age);
                    let observation = Observation {
                        acceptance, granted_at: at, sent_at: at, requested_pause: pause,
                        remaining: headers.as_deref().unwrap_or_default(),
                    };
                    let until = learner.observe(&observation, progress(accepted, 0), now);
                    prop_assert!(until.is_none_or(|until| until >= now));
                    let requested = until.filter(|_| pause.is_some());
                    prop_assert!(requested.is_none_or(|until| until >= now.saturating_add(pause.unwrap())));
                }
                Step::Lose(was_sent) => drop(learner.lose(now, was_sent)),
                Step::Resume => learner.resume(),
                Step::Ceiling(rate) => {
                    ceiling = rate;
                    learner.set_ceiling(rate);
                }
            }
            if let Some(rate) = learner.rate {
                prop_assert!(LOWEST.min(ceiling) <= rate && rate <= ceiling, "{rate} of {ceiling}");
            }
            prop_assert!(learner.due(now, 1, 1) >= now && learner.due(now, 5, 2) >= now);
            learner.available(now);
        }
    }
}
