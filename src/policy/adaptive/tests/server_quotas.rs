//! Tests what the learner reads from the quotas that the server reports.

use super::*;

/// 86,400 s in nanoseconds.
const DAY: u64 = 86_400 * SECOND;

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
fn pause_lasts_for_the_longer_of_the_requested_delay_and_the_reset_of_a_used_up_quota() {
    let now = SECOND;
    let (empty, some) = (quota(100, 30, 0), quota(100, 30, 1));
    let until = |requested_pause: Option<u64>, remaining: &[Remaining]| {
        let acceptance = Acceptance::Throttled;
        let observation = Observation { requested_pause, remaining, ..response(acceptance, 1) };
        Learner::new(f64::INFINITY).observe(&observation, progress(0, 1), now)
    };
    assert_eq!(until(Some(7 * SECOND), &empty), Some(31 * SECOND));
    assert_eq!(until(Some(70 * SECOND), &empty), Some(71 * SECOND));
    assert_eq!(until(Some(7 * SECOND), &some), Some(8 * SECOND));
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
fn reset_in_a_throttled_response_to_an_earlier_request_extends_a_pause_and_begins_one() {
    let empty = quota(100, 30, 0);
    let late = Observation { remaining: &empty, ..response(Acceptance::Throttled, SECOND / 2) };
    let mut learner = throttled();
    assert_eq!(learner.observe(&late, progress(100, 1), 2 * SECOND), Some(32 * SECOND), "during the pause");
    assert_eq!((learner.paused_at, learner.wait), (Some(SECOND), FIRST_WAIT), "the same pause");
    let mut learner = reopened();
    assert_eq!(learner.observe(&late, progress(100, 1), 3 * SECOND), Some(33 * SECOND), "after the pause");
    assert!(!learner.is_probing());
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
fn rate_of_a_header_quota_ends_when_the_quota_expires() {
    let mut learner = Learner::new(f64::INFINITY);
    let headers = quota(102, 1, 90);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
    learner.observe(&observation, progress(1, 0), 0);
    learner.advance(progress(1, 0), 1, 2 * SECOND - 1);
    assert_eq!(learner.rate, Some(100.0));
    learner.advance(progress(1, 0), 1, 2 * SECOND);
    assert_eq!((learner.rate, learner.quota()), (None, None));
    assert_eq!((learner.clean_rate, learner.slow_from, learner.reopened_at), (None, 2 * SECOND, 0));
}

#[test]
fn rate_after_a_throttled_response_outlasts_the_header_quota() {
    let mut learner = Learner::new(f64::INFINITY);
    let headers = quota(102, 1, 90);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 0) };
    learner.observe(&observation, progress(1, 0), 0);
    learner.observe(&response(Acceptance::Throttled, 1), progress(1, 1), 1);
    let rate = learner.rate;
    assert!(rate.is_some_and(|rate| rate < 100.0));
    learner.advance(progress(1, 0), 1, 3 * SECOND);
    assert_eq!((learner.rate, learner.source, learner.quota()), (rate, LearnedFrom::Throttling, None));
}

#[test]
fn only_a_real_quota_of_requests_sets_a_rate() {
    let tokens: [(_, &[u8]); 3] = [
        ("x-ratelimit-limit-tokens", b"30000"),
        ("x-ratelimit-remaining-tokens", b"0"),
        ("x-ratelimit-reset-tokens", b"30s"),
    ];
    assert_eq!(rate_after(&[reported(&tokens)]), None);
    for (limit, is_real) in [(10_000_000, true), (10_000_001, false), (u64::MAX, false)] {
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
fn distant_resets_in_one_response_prevent_no_rate_for_more_than_a_day() {
    let names: Vec<_> = (0..8).map(|name| format!("\"a{name}\";r=1;t=946080000")).collect();
    let distant = reported(&[("ratelimit", names.join(",").as_bytes())]);
    let bucket = [
        ("x-ratelimit-limit", b"102".as_slice()),
        ("x-ratelimit-remaining", b"50"),
        ("x-ratelimit-reset", b"1"),
        ("x-ratelimit-bucket", b"b"),
    ];
    for (headers, day, rate) in [
        (quota(102, 1, 50), DAY - 1, None),
        (quota(102, 1, 50), DAY, Some(100.0)),
        // The only quota, although of a bucket.
        (reported(&bucket), DAY, Some(100.0)),
    ] {
        let mut learner = Learner::new(f64::INFINITY);
        for (remaining, now) in [(&distant, 0), (&headers, day)] {
            let observation = Observation { remaining, ..response(Acceptance::Accepted, now) };
            learner.advance(progress(1, 0), 1, now);
            learner.observe(&observation, progress(1, 0), now);
        }
        assert_eq!(learner.rate, rate);
    }
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
