//! Tests how the learner changes its rate.

use super::*;

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
fn only_a_rate_that_was_used_is_raised() {
    // Evenly spaced requests for ten minutes, 50 of which the learned rate allows in a second.
    for (per_second, expected) in [(20, 50.0), (38, 50.0), (45, 100.0)] {
        let (mut learner, mut accepted) = (reopened(), 100);
        let times = (0..600 * per_second).map(|number| 2 * SECOND + number * SECOND / per_second);
        assert_eq!(serve(&mut learner, &mut accepted, times), expected, "{per_second} per second");
    }
}

#[test]
fn request_that_costs_several_permits_uses_a_rate() {
    let (mut learner, mut accepted, mut now) = (reopened(), 100, 2 * SECOND);
    // Each request takes 1.6 s at 50 permits per second.
    for _ in 0..3 {
        now = learner.due(now, 80, 80);
        learner.advance(progress(accepted, 0), 80, now);
        learner.grant(80, progress(accepted, 0), now);
        accepted += 80;
    }
    assert_eq!(learner.rate, Some(100.0));
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

#[test]
fn costly_request_waits_until_its_permits_would_be_refilled() {
    let learner = reopened();
    assert!(!learner.is_free(5, 2 * SECOND + 80 * MILLI) && learner.is_free(5, 2 * SECOND + 100 * MILLI));
}

#[test]
fn rate_above_a_lower_ceiling_applies_again_with_a_higher_one() {
    let mut learner = reopened();
    for (ceiling, rate) in [(10.0, 10.0), (1.0, 1.0), (20.0, 20.0), (f64::INFINITY, 50.0)] {
        learner.set_ceiling(ceiling);
        assert_eq!(learner.rate, Some(rate));
    }
    // A cut below the lower ceiling replaces the rate.
    learner.set_ceiling(10.0);
    learner.observe(&response(Acceptance::Throttled, 3 * SECOND), progress(100, 1), 3 * SECOND);
    learner.set_ceiling(f64::INFINITY);
    assert_eq!(learner.rate, Some(7.0));
}

#[test]
fn reported_quota_replaces_the_rate_above_a_lower_ceiling() {
    let mut learner = reopened();
    learner.set_ceiling(10.0);
    let headers = quota(204, 10, 100);
    let observation = Observation { remaining: &headers, ..response(Acceptance::Accepted, 3 * SECOND) };
    learner.observe(&observation, progress(101, 0), 3 * SECOND);
    assert_eq!(learner.rate, Some(10.0));
    learner.set_ceiling(f64::INFINITY);
    assert_eq!(learner.rate, Some(20.0));
}
