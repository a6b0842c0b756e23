use http::StatusCode;
use proptest::prelude::*;

use super::*;
use crate::policy::outcome::Outcome::{Failed, NotSent, Refused, Rejected, Response, Timeout};

const SECOND: Duration = Duration::from_secs(1);
const SUCCESS: LastAttempt = LastAttempt::Classified(RetryDecision::Success);
const LASTING: LastAttempt = LastAttempt::Classified(RetryDecision::NotRetryable);
const TRANSIENT: LastAttempt = LastAttempt::Classified(RetryDecision::Transient);
const THROTTLED: LastAttempt = LastAttempt::Classified(RetryDecision::Throttled);
const UNAVAILABLE: Outcome = Response(StatusCode::SERVICE_UNAVAILABLE);
const UNAUTHORIZED: Outcome = Response(StatusCode::UNAUTHORIZED);
const REJECTED: Outcome = Rejected(StatusCode::TOO_MANY_REQUESTS);
const BACKOFF: Delay = Delay { own: SECOND, spread: Duration::from_millis(500) };

/// An idempotent request after a 503 to its first attempt, without a deadline.
const STATE: RetryState = RetryState {
    attempts: 1,
    max_attempts: 3,
    idempotent: true,
    outcome: UNAVAILABLE,
    requested_delay: None,
    time_left: None,
    replayable: true,
    has_credit: true,
    last_attempt: TRANSIENT,
    retry_rejected: RetryRejected::AnyMethod,
    max_retry_after: Duration::from_secs(120),
    other_member: None,
    has_body: true,
};

/// Decides with a backoff of 1 s.
fn decide(state: RetryState) -> Result<Retry, Stop> {
    super::decide(&state, |_| Some(BACKOFF))
}

fn reason(state: RetryState) -> Option<StopReason> {
    decide(state).err().map(|stop| stop.reason)
}

fn retry(delay: Duration, reason: DelayReason) -> Result<Retry, Stop> {
    Ok(Retry { delay, drain: DRAIN_TIME.min(delay), reason, member_delay: None })
}

fn stop(reason: StopReason) -> Result<Retry, Stop> {
    Err(reason.into())
}

#[test]
fn call_that_stops_for_another_reason_draws_no_backoff() {
    for (state, expected) in [
        (RetryState { idempotent: false, ..STATE }, StopReason::NotIdempotent),
        (RetryState { attempts: 3, ..STATE }, StopReason::Exhausted),
        (RetryState { requested_delay: Some(121 * SECOND), ..STATE }, StopReason::RequestedDelayTooLong),
    ] {
        let stop = super::decide(&state, |_| panic!("a backoff was drawn")).unwrap_err();
        assert_eq!(stop.reason, expected);
    }
}

#[test]
fn retries_after_the_backoff_or_a_longer_requested_delay() {
    let millis = Duration::from_millis;
    for (requested_delay, delay, reason) in [
        (None, SECOND, DelayReason::Transient),
        (Some(millis(1)), SECOND, DelayReason::Transient),
        (Some(SECOND), SECOND, DelayReason::Transient),
        (Some(millis(1_001)), millis(1_501), DelayReason::Requested),
        (Some(120 * SECOND), millis(120_500), DelayReason::Requested),
    ] {
        let state = RetryState { requested_delay, ..STATE };
        assert_eq!(decide(state), retry(delay, reason), "{requested_delay:?}");
    }
    let throttled = RetryState { last_attempt: THROTTLED, ..STATE };
    assert_eq!(decide(throttled), retry(SECOND, DelayReason::Throttled));
}

#[test]
fn call_stops_after_success_lasting_failure_or_deadline_without_a_backoff() {
    for (last_attempt, reason) in [
        (SUCCESS, StopReason::Success),
        (LASTING, StopReason::NotRetryable),
        (LastAttempt::Deadline, StopReason::Deadline),
    ] {
        for outcome in [UNAVAILABLE, NotSent] {
            let state = RetryState { outcome, last_attempt, replayable: false, ..STATE };
            assert_eq!(super::decide(&state, |_| panic!("a backoff was drawn")), stop(reason));
        }
    }
}

#[test]
fn retries_non_idempotent_requests_only_if_they_were_not_sent_or_rejected() {
    for (retry_rejected, rejected_is_safe) in
        [(RetryRejected::AnyMethod, true), (RetryRejected::Idempotent, false)]
    {
        for (outcome, safe) in [
            (UNAVAILABLE, false),
            (Response(StatusCode::TOO_MANY_REQUESTS), false),
            (REJECTED, rejected_is_safe),
            (Timeout, false),
            (Failed, false),
            (NotSent, true),
            (Refused, true),
        ] {
            let state = RetryState { idempotent: false, outcome, retry_rejected, ..STATE };
            let expected = match safe {
                true => retry(SECOND, DelayReason::Transient),
                false => stop(StopReason::NotIdempotent),
            };
            assert_eq!(decide(state), expected, "{outcome:?}");
            assert!(decide(RetryState { idempotent: true, ..state }).is_ok(), "{outcome:?}");
        }
    }
}

#[test]
fn rejected_request_is_subject_to_all_other_rules() {
    let state = RetryState { idempotent: false, outcome: REJECTED, last_attempt: THROTTLED, ..STATE };
    for (state, expected) in [
        (RetryState { attempts: 3, ..state }, StopReason::Exhausted),
        (RetryState { replayable: false, ..state }, StopReason::NotReplayable),
        (RetryState { has_credit: false, ..state }, StopReason::Budget),
        (RetryState { time_left: Some(SECOND), ..state }, StopReason::Deadline),
        (RetryState { requested_delay: Some(121 * SECOND), ..state }, StopReason::RequestedDelayTooLong),
        (RetryState { last_attempt: LASTING, ..state }, StopReason::NotRetryable),
    ] {
        assert_eq!(reason(state), Some(expected));
    }
}

#[test]
fn call_stops_after_the_last_attempt_or_the_end_of_a_custom_backoff() {
    for (attempts, max_attempts, expected) in [
        (1, 1, Some(StopReason::Exhausted)),
        (2, 3, None),
        (3, 3, Some(StopReason::Exhausted)),
        (4, 3, Some(StopReason::Exhausted)),
    ] {
        let state = RetryState { attempts, max_attempts, ..STATE };
        assert_eq!(reason(state), expected, "{attempts} of {max_attempts}");
    }
    assert_eq!(super::decide(&STATE, |_| None), stop(StopReason::Exhausted));
}

#[test]
fn reports_the_requested_delay_that_was_too_long() {
    let too_long = 120 * SECOND + Duration::from_nanos(1);
    let expected = Err(Stop { retry_after: Some(too_long), ..StopReason::RequestedDelayTooLong.into() });
    assert_eq!(decide(RetryState { requested_delay: Some(too_long), ..STATE }), expected);

    let late = Err(Stop { retry_after: Some(SECOND), ..StopReason::Deadline.into() });
    assert_eq!(decide(RetryState { time_left: Some(SECOND), ..STATE }), late);
    assert!(decide(RetryState { time_left: Some(SECOND + Duration::from_nanos(1)), ..STATE }).is_ok());
}

#[test]
fn another_member_of_a_pool_takes_the_next_attempt_before_the_requested_delay() {
    let millis = Duration::from_millis;
    // The last attempt, the requested delay, the wait at the other member, the delay of the next attempt, and the delay
    // of the member of the last attempt.
    for (last_attempt, requested, other, delay, member) in [
        (TRANSIENT, Some(9_000), 100, 1_000, Some(9_500)),
        (TRANSIENT, Some(600_000), 100, 1_000, Some(600_500)),
        (TRANSIENT, Some(500), 100, 1_000, None),
        (TRANSIENT, None, 100, 1_000, None),
        (TRANSIENT, Some(9_000), 9_000, 9_500, None),
        (THROTTLED, Some(9_000), 100, 0, Some(9_500)),
        (THROTTLED, Some(500), 100, 0, Some(1_000)),
        (THROTTLED, None, 100, 0, Some(1_000)),
        (THROTTLED, None, 1_000, 1_000, None),
    ] {
        let requested_delay = requested.map(millis);
        let state = RetryState { last_attempt, requested_delay, other_member: Some(millis(other)), ..STATE };
        let decided = decide(state).unwrap();
        assert_eq!((decided.delay, decided.member_delay), (millis(delay), member.map(millis)), "{state:?}");
    }
    // The other member is expected to be ready only after the longest accepted delay.
    let requested_delay = Some(600 * SECOND);
    let state = RetryState { requested_delay, other_member: Some(121 * SECOND), ..STATE };
    assert_eq!(reason(state), Some(StopReason::RequestedDelayTooLong));
}

#[test]
fn resends_request_with_another_key_for_any_method_and_attempt_count() {
    let state = RetryState {
        attempts: 9,
        idempotent: false,
        has_credit: false,
        outcome: UNAUTHORIZED,
        last_attempt: LastAttempt::KeyReplaced,
        ..STATE
    };
    let resend = |state| super::decide(&state, |_| panic!("a backoff was drawn"));
    let immediate = retry(Duration::ZERO, DelayReason::KeyReplaced).unwrap();
    assert_eq!(resend(state), Ok(Retry { drain: DRAIN_TIME, ..immediate }));
    assert_eq!(resend(RetryState { has_body: false, ..state }), Ok(immediate));
    assert_eq!(resend(RetryState { replayable: false, ..state }), stop(StopReason::NotReplayable));
    // No time would be left for the next attempt after draining the response.
    assert!(resend(RetryState { time_left: Some(DRAIN_TIME), ..state }).is_err());
    assert!(resend(RetryState { time_left: Some(SECOND), ..state }).is_ok());
    // A requested delay also applies to a resend with another key, but without jitter.
    let requested = RetryState { requested_delay: Some(SECOND), ..state };
    assert_eq!(resend(requested), retry(SECOND, DelayReason::Requested));
    let requested = RetryState { requested_delay: Some(121 * SECOND), ..state };
    assert_eq!(resend(requested).unwrap_err().reason, StopReason::RequestedDelayTooLong);
}

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), (0..200_000_u64).prop_map(Duration::from_millis), Just(Duration::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Checks that no input causes a retry that is early, unsafe or past the deadline.
    #[test]
    fn retry_is_never_early_unsafe_or_past_the_deadline(
        (attempts, max_attempts, idempotent, rejected_is_safe, max_retry_after) in
            (0..5_u32, 1..5_u32, any::<bool>(), any::<bool>(), durations()),
        outcome in prop::sample::select(vec![
            UNAVAILABLE, UNAUTHORIZED, REJECTED, Timeout, Failed, NotSent, Refused,
        ]),
        last_attempt in prop::sample::select(vec![
            TRANSIENT, THROTTLED, SUCCESS, LASTING, LastAttempt::KeyReplaced, LastAttempt::Deadline,
        ]),
        [requested_delay, time_left, other_member] in
            [prop::option::of(durations()), prop::option::of(durations()), prop::option::of(durations())],
        [replayable, has_credit, has_body] in any::<[bool; 3]>(),
        backoff in prop::option::of((durations(), durations())),
    ) {
        let retry_rejected = if rejected_is_safe { RetryRejected::AnyMethod } else { RetryRejected::Idempotent };
        let state = RetryState {
            attempts, max_attempts, idempotent, outcome, requested_delay, time_left, replayable, has_credit,
            last_attempt, retry_rejected, max_retry_after, other_member, has_body,
        };
        let own = backoff.map(|(own, spread)| Delay { own, spread });
        let decided = super::decide(&state, |_| own);
        prop_assert_eq!(decided, super::decide(&state, |_| own));
        let Ok(retry) = decided else { return Ok(()) };
        prop_assert!(replayable);
        // No member gets the next attempt before the delay that it requested.
        let obeyed = retry.delay.max(retry.member_delay.unwrap_or_default());
        prop_assert!(requested_delay.is_none_or(|requested| obeyed >= requested));
        let has_other_member = other_member.is_some_and(|wait| wait <= max_retry_after);
        prop_assert!(has_other_member || retry.member_delay.is_none());
        prop_assert!(has_other_member || requested_delay.is_none_or(|delay| delay <= max_retry_after));
        prop_assert!(time_left.is_none_or(|left| retry.delay.max(retry.drain) < left));
        prop_assert!(retry.drain <= DRAIN_TIME);
        if last_attempt != LastAttempt::KeyReplaced {
            let is_safe = match outcome.delivery() {
                Delivery::NotSent => true,
                Delivery::Rejected => rejected_is_safe,
                Delivery::MaybeProcessed | Delivery::Processed => false,
            };
            prop_assert!(idempotent || is_safe);
            prop_assert!(attempts < max_attempts && has_credit && obeyed >= own.unwrap().own);
        }
    }
}

#[test]
fn treats_only_the_six_methods_of_rfc_9110_as_idempotent() {
    let idempotent = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
    // Method names are case-sensitive.
    let others = ["POST", "PATCH", "CONNECT", "PROPFIND", "QUERY", "get"];
    for (names, expected) in [(idempotent, true), (others, false)] {
        for name in names {
            assert_eq!(is_idempotent(&Method::from_bytes(name.as_bytes()).unwrap()), expected, "{name}");
        }
    }
}

#[test]
fn classifies_every_status() {
    for status in 100..1_000 {
        let expected = match status {
            100..=399 => RetryDecision::Success,
            429 | 529 => RetryDecision::Throttled,
            408 | 500 | 502 | 503 | 504 | 520..=524 | 530 => RetryDecision::Transient,
            _ => RetryDecision::NotRetryable,
        };
        assert_eq!(RetryDecision::of(StatusCode::from_u16(status).unwrap()), expected, "{status}");
    }
}
