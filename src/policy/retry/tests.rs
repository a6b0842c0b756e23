use http::StatusCode;
use proptest::prelude::*;

use super::*;
use crate::policy::outcome::Outcome::{Failed, NotSent, Refused, Rejected, Response, Timeout};

const SECOND: Duration = Duration::from_secs(1);
const TRANSIENT: LastAttempt = LastAttempt::Classified(RetryDecision::Transient);
const THROTTLED: LastAttempt = LastAttempt::Classified(RetryDecision::Throttled);
const UNAVAILABLE: Outcome = Response(StatusCode::SERVICE_UNAVAILABLE);
const UNAUTHORIZED: Outcome = Response(StatusCode::UNAUTHORIZED);
const REJECTED: Outcome = Rejected(StatusCode::TOO_MANY_REQUESTS);

/// An idempotent request after its first attempt.
const STATE: RetryState = RetryState {
    attempts: 1,
    max_attempts: 3,
    idempotent: true,
    retry_rejected: RetryRejected::AnyMethod,
    max_retry_after: Duration::from_secs(120),
};

/// Inputs with a backoff of 1 s, without a deadline, and with a body that can be replayed.
const INPUTS: Inputs = Inputs {
    requested: None,
    backoff: Some(Delay { own: SECOND, spread: Duration::from_millis(500) }),
    time_left: None,
    replayable: true,
    has_body: true,
};

fn retry(delay: Duration, reason: DelayReason) -> Result<Retry, Stop> {
    Ok(Retry { delay, drain: DRAIN_TIME.min(delay), reason })
}

fn stop(reason: StopReason) -> Result<Retry, Stop> {
    Err(reason.into())
}

#[test]
fn retries_after_the_backoff_or_a_longer_requested_delay() {
    let millis = Duration::from_millis;
    for (requested, delay, reason) in [
        (None, SECOND, DelayReason::Transient),
        (Some(millis(1)), SECOND, DelayReason::Transient),
        (Some(SECOND), SECOND, DelayReason::Transient),
        (Some(millis(1_001)), millis(1_501), DelayReason::Requested),
        (Some(120 * SECOND), millis(120_500), DelayReason::Requested),
    ] {
        let inputs = Inputs { requested, ..INPUTS };
        assert_eq!(decide(&STATE, UNAVAILABLE, TRANSIENT, &inputs), retry(delay, reason), "{requested:?}");
    }
    let throttled = retry(SECOND, DelayReason::Throttled);
    assert_eq!(decide(&STATE, UNAVAILABLE, THROTTLED, &INPUTS), throttled);
}

#[test]
fn call_stops_after_success_lasting_failure_or_deadline() {
    for (verdict, reason) in [
        (LastAttempt::Classified(RetryDecision::Success), StopReason::Success),
        (LastAttempt::Classified(RetryDecision::NotRetryable), StopReason::NotRetryable),
        (LastAttempt::Deadline, StopReason::Deadline),
    ] {
        assert_eq!(backoff_reason(&STATE, UNAVAILABLE, verdict, None), Err(reason.into()));
        assert_eq!(decide(&STATE, UNAVAILABLE, verdict, &INPUTS), stop(reason));
        assert_eq!(decide(&STATE, NotSent, verdict, &Inputs::default()), stop(reason));
    }
}

#[test]
fn retries_non_idempotent_requests_only_if_they_were_not_sent_or_rejected() {
    for (retry_rejected, rejected_is_safe) in
        [(RetryRejected::AnyMethod, true), (RetryRejected::Idempotent, false)]
    {
        let state = RetryState { idempotent: false, retry_rejected, ..STATE };
        for (outcome, safe) in [
            (UNAVAILABLE, false),
            (Response(StatusCode::TOO_MANY_REQUESTS), false),
            (REJECTED, rejected_is_safe),
            (Timeout, false),
            (Failed, false),
            (NotSent, true),
            (Refused, true),
        ] {
            let expected = match safe {
                true => retry(SECOND, DelayReason::Transient),
                false => stop(StopReason::NotIdempotent),
            };
            assert_eq!(decide(&state, outcome, TRANSIENT, &INPUTS), expected, "{outcome:?}");
            let idempotent = RetryState { idempotent: true, ..state };
            assert!(decide(&idempotent, outcome, TRANSIENT, &INPUTS).is_ok(), "{outcome:?}");
        }
    }
}

#[test]
fn rejected_request_is_subject_to_all_other_rules() {
    let state = RetryState { idempotent: false, ..STATE };
    let decided =
        |state: RetryState, inputs: Inputs| decide(&state, REJECTED, THROTTLED, &inputs).unwrap_err().reason;
    assert_eq!(decided(RetryState { attempts: 3, ..state }, INPUTS), StopReason::Exhausted);
    assert_eq!(decided(state, Inputs { replayable: false, ..INPUTS }), StopReason::NotReplayable);
    assert_eq!(decided(state, Inputs { time_left: Some(SECOND), ..INPUTS }), StopReason::Deadline);
    let too_long = Inputs { requested: Some(121 * SECOND), ..INPUTS };
    assert_eq!(decided(state, too_long), StopReason::RequestedDelayTooLong);
    let lasting = decide(&state, REJECTED, LastAttempt::Classified(RetryDecision::NotRetryable), &INPUTS);
    assert_eq!(lasting, stop(StopReason::NotRetryable));
}

#[test]
fn call_stops_after_the_last_attempt_or_the_end_of_a_custom_backoff() {
    for (attempts, max_attempts, expected) in [(1, 1, false), (2, 3, true), (3, 3, false), (4, 3, false)] {
        let state = RetryState { attempts, max_attempts, ..STATE };
        let retried = decide(&state, UNAVAILABLE, TRANSIENT, &INPUTS);
        assert_eq!(retried.is_ok(), expected, "{attempts} of {max_attempts}");
        assert!(expected || retried == stop(StopReason::Exhausted));
    }
    let ended = Inputs { backoff: None, ..INPUTS };
    assert_eq!(decide(&STATE, UNAVAILABLE, TRANSIENT, &ended), stop(StopReason::Exhausted));
}

#[test]
fn reports_the_requested_delay_that_was_too_long() {
    let too_long = 120 * SECOND + Duration::from_nanos(1);
    let inputs = Inputs { requested: Some(too_long), ..INPUTS };
    let expected = Err(Stop { reason: StopReason::RequestedDelayTooLong, retry_after: Some(too_long) });
    assert_eq!(decide(&STATE, UNAVAILABLE, TRANSIENT, &inputs), expected);

    for (time_left, expected) in [(SECOND, false), (SECOND + Duration::from_nanos(1), true)] {
        let inputs = Inputs { time_left: Some(time_left), ..INPUTS };
        let decided = decide(&STATE, UNAVAILABLE, TRANSIENT, &inputs);
        assert_eq!(decided.is_ok(), expected, "{time_left:?}");
        let late = Err(Stop { reason: StopReason::Deadline, retry_after: Some(SECOND) });
        assert!(expected || decided == late);
    }
}

#[test]
fn call_stops_if_the_body_cannot_be_replayed() {
    let inputs = Inputs { replayable: false, ..INPUTS };
    assert_eq!(decide(&STATE, UNAVAILABLE, TRANSIENT, &inputs), stop(StopReason::NotReplayable));
    assert_eq!(
        decide(&STATE, UNAUTHORIZED, LastAttempt::KeyReplaced, &inputs),
        stop(StopReason::NotReplayable)
    );
}

#[test]
fn resends_request_with_another_key_for_any_method_and_attempt_count() {
    let state = RetryState { attempts: 9, idempotent: false, ..STATE };
    let resend = |inputs| decide(&state, UNAUTHORIZED, LastAttempt::KeyReplaced, &inputs);
    let immediate = Retry { delay: Duration::ZERO, drain: DRAIN_TIME, reason: DelayReason::KeyReplaced };
    let plain = Inputs { backoff: None, ..INPUTS };
    assert_eq!(resend(plain), Ok(immediate));
    assert_eq!(resend(Inputs { has_body: false, ..plain }), Ok(Retry { drain: Duration::ZERO, ..immediate }));
    // No time would be left for the next attempt after draining the response.
    assert!(resend(Inputs { time_left: Some(DRAIN_TIME), ..plain }).is_err());
    assert!(resend(Inputs { time_left: Some(SECOND), ..plain }).is_ok());
    // A requested delay also applies to a resend with another key, but without jitter.
    let requested = Inputs { requested: Some(SECOND), ..plain };
    assert_eq!(resend(requested), retry(SECOND, DelayReason::Requested));
    let requested = Inputs { requested: Some(121 * SECOND), ..plain };
    assert_eq!(resend(requested).unwrap_err().reason, StopReason::RequestedDelayTooLong);
}

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), (0..200_000_u64).prop_map(Duration::from_millis), Just(Duration::MAX)]
}

fn inputs() -> impl Strategy<Value = Inputs> {
    let maybe = || prop::option::of(durations());
    (maybe(), prop::option::of((durations(), durations())), maybe(), any::<bool>(), any::<bool>()).prop_map(
        |(requested, backoff, time_left, replayable, has_body)| Inputs {
            requested,
            backoff: backoff.map(|(own, spread)| Delay { own, spread }),
            time_left,
            replayable,
            has_body,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Checks that no input causes a retry that is early, unsafe or past the deadline.
    #[test]
    fn retry_is_never_early_unsafe_or_past_the_deadline(
        state in (0..5_u32, 1..5_u32, any::<bool>(), any::<bool>(), durations()),
        outcome in prop::sample::select(vec![
            UNAVAILABLE, UNAUTHORIZED, REJECTED, Timeout, Failed, NotSent, Refused,
        ]),
        verdict in prop::sample::select(vec![
            TRANSIENT,
            THROTTLED,
            LastAttempt::Classified(RetryDecision::Success),
            LastAttempt::Classified(RetryDecision::NotRetryable),
            LastAttempt::KeyReplaced,
            LastAttempt::Deadline,
        ]),
        inputs in inputs(),
    ) {
        let (attempts, max_attempts, idempotent, rejected_is_safe, max_retry_after) = state;
        let retry_rejected = if rejected_is_safe { RetryRejected::AnyMethod } else { RetryRejected::Idempotent };
        let state = RetryState { attempts, max_attempts, idempotent, retry_rejected, max_retry_after };
        let decided = decide(&state, outcome, verdict, &inputs);
        prop_assert_eq!(decided, decide(&state, outcome, verdict, &inputs));
        // The backoff does not change a decision to stop, so the caller need not compute a backoff.
        let reason = backoff_reason(&state, outcome, verdict, inputs.requested);
        if let Err(stop) = reason {
            let without = Inputs { requested: inputs.requested, ..Inputs::default() };
            prop_assert_eq!((decided, decide(&state, outcome, verdict, &without)), (Err(stop), Err(stop)));
        }
        let Ok(retry) = decided else { return Ok(()) };
        prop_assert!(inputs.replayable);
        prop_assert!(inputs.requested.is_none_or(|requested| retry.delay >= requested && requested <= max_retry_after));
        prop_assert!(inputs.time_left.is_none_or(|left| retry.delay.max(retry.drain) < left));
        prop_assert!(retry.drain <= DRAIN_TIME);
        if verdict != LastAttempt::KeyReplaced {
            let is_safe = match outcome.delivery() {
                Delivery::NotSent => true,
                Delivery::Rejected => rejected_is_safe,
                Delivery::MaybeProcessed | Delivery::Processed => false,
            };
            prop_assert!(idempotent || is_safe);
            prop_assert!(attempts < max_attempts && retry.delay >= inputs.backoff.unwrap().own);
        }
    }
}
