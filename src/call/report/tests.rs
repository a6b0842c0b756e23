use super::*;
use crate::clock;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn durations_are_whole_milliseconds_or_hundredths_of_a_second() {
    for (micros, text) in [
        (0, "0ms"),
        (499, "0ms"),
        (27_400, "27ms"),
        (999_400, "999ms"),
        (999_500, "1s"),
        (2_050_000, "2.05s"),
        (3_000_400, "3s"),
        (11_222_500, "11.22s"),
        (600_000_000, "600s"),
    ] {
        assert_eq!(short(Duration::from_micros(micros)), text);
    }
    assert!(short(Duration::MAX).ends_with('s'));
}

/// Each attempt takes `took` and fails with `failure`, and each delay takes 50 ms.
fn state_of(count: u64, failure: &'static str, took: Duration) -> State {
    let mut state = State::default();
    for _ in 0..count {
        let started =
            state.attempts.last.as_ref().and_then(|last| last.ended.get()).map(|end| end + millis(50));
        state.attempts.start(started.unwrap_or_default().into());
        let last = state.attempts.last.as_mut().unwrap();
        last.ended = (started.unwrap_or_default() + took).into();
        last.delay = millis(50).into();
        (last.outcome, last.failure) = (Some(Outcome::NotSent), Some(failure));
    }
    state
}

#[test]
fn list_of_attempts_has_at_most_240_characters_and_ends_with_the_latest_attempt() {
    for (count, failure, took) in
        [(8, "dns", 12), (9, "connect_refused", 3), (2_000, "connect_timeout", 15_000), (70_000, "tls", 9)]
    {
        let state = state_of(count, failure, millis(took));
        let log = state.attempt_log();
        let entry = format!("{failure}(not_sent)@{}", short(millis(took)));
        assert!(log.len() <= LONGEST && log.ends_with(&entry), "{}: {log}", log.len());
        let listed = log.matches(&entry).count() as u64;
        let elided = count - listed;
        if elided == 0 {
            assert_eq!(log, vec![entry; 8].join(", "));
        } else {
            let sum = short(millis(took * elided));
            assert!(log.starts_with(&format!("{elided} earlier@{sum}, {entry}")), "{log}");
            assert!(log.len() + entry.len() > LONGEST - ELIDED, "{log}");
        }
        assert_eq!(state.backoff(), millis(50 * (count - 1)));
    }
}

#[test]
fn attempt_without_an_end_shows_its_time_up_to_the_deadline() {
    let call = super::super::CallContext::of(&mut http::Extensions::new());
    call.start_attempt(clock::now()).unwrap();
    assert_eq!(call.report().to_string(), "1 attempt (unfinished)");
    let mut state = state_of(1, "closed", millis(10));
    state.attempts.start(millis(60).into());
    state.stop_reason = Some(StopReason::Deadline);
    state.rare.get_or_insert_default().expired = millis(1_060).into();
    assert_eq!(state.attempt_log(), "closed(not_sent)@10ms, deadline@1s");
    assert_eq!(state.backoff(), millis(50));
}

#[test]
fn backoff_ends_at_the_deadline_if_the_next_attempt_does_not_start() {
    let mut state = state_of(1, "closed", millis(10));
    assert_eq!(state.backoff(), Duration::ZERO);
    state.rare.get_or_insert_default().expired = millis(30).into();
    assert_eq!(state.backoff(), millis(20));
}
