//! Tests pauses, probes, 503s and blocks.

use super::*;

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
fn set_pause_is_the_shortest_one_after_a_throttled_response_but_not_after_a_503() {
    let mut learner = reopened();
    let mut now = 3 * SECOND;
    for (acceptance, wait) in [
        (Acceptance::Throttled, 90_000),
        (Acceptance::Unavailable, 5_000),
        (Acceptance::Throttled, 90_000),
        (Acceptance::Throttled, 112_500),
    ] {
        let observation = Observation { least_pause: 90 * SECOND, ..response(acceptance, now) };
        let pause = learner.observe(&observation, progress(100, 1), now).unwrap();
        assert_eq!((pause - now) / MILLI, wait);
        now = pause;
        learner.grant(1, progress(100, 0), now);
    }
    let observation = Observation {
        least_pause: 90 * SECOND,
        requested_pause: Some(1),
        ..response(Acceptance::Throttled, now)
    };
    assert_eq!(
        learner.observe(&observation, progress(100, 1), now),
        Some(now + 1),
        "the server states the end"
    );
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

#[test]
fn response_to_a_replaced_probe_ends_the_pause() {
    let mut learner = throttled();
    learner.grant(1, progress(100, 0), 2 * SECOND);
    assert!(learner.is_free(1, 12 * SECOND));
    learner.grant(1, progress(100, 0), 12 * SECOND);
    learner.observe(&response(Acceptance::Accepted, 2 * SECOND), progress(101, 1), 15 * SECOND);
    assert!(!learner.is_probing());
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
fn complete_run_raises_no_rate_while_503s_are_ignored() {
    let mut learner = reopened();
    for seconds in 3..10 {
        pause_once(&mut learner, Acceptance::Unavailable, 100, seconds * SECOND);
    }
    assert_eq!(learner.rate, Some(50.0));
    learner.advance(progress(10_000, 0), 1, 60 * SECOND);
    assert_eq!(learner.rate, Some(50.0));
    learner.advance(progress(20_000, 0), 1, 70 * SECOND);
    assert_eq!(learner.rate, Some(100.0));
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
fn pauses_by_503s_are_no_outage_while_no_rate_is_known_and_probes_are_accepted() {
    let mut learner = Learner::new(f64::INFINITY);
    for seconds in 1..30 {
        // Fewer than ten requests are accepted, so there is no estimate.
        assert!(pause_once(&mut learner, Acceptance::Unavailable, 5, seconds * SECOND).is_some());
    }
    assert!(learner.rate.is_none() && !learner.outage.is_ignored(0));
}

#[test]
fn learner_without_a_rate_forgets_its_estimate_if_503s_continue_after_six_cuts() {
    let mut learner = Learner::new(f64::INFINITY);
    learner.grant(1, progress(0, 0), 0);
    for number in 1..=20 {
        pause_once(&mut learner, Acceptance::Unavailable, 20 * number, number * SECOND);
        // The second 503 sets a rate, which counts as the first cut.
        assert_eq!(learner.rate.is_none(), number == 1 || number > 7, "after {number} responses");
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
