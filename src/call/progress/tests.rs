use std::task::Waker;

use super::*;
use crate::call::{Outcome, Phase};

fn call() -> CallContext {
    CallContext::of(&mut http::Extensions::new())
}

#[test]
fn sent_is_the_last_phase_of_an_attempt() {
    let (call, sent) = (call(), Duration::from_nanos(7));
    call.begin_watch();
    for (is_new, phase) in [(true, Phase::Connecting), (false, Phase::Waiting)] {
        call.wait(is_new);
        assert_eq!(call.phase(), phase);
    }
    assert!(call.send(1, call.started() + sent));
    call.wait(true);
    assert_eq!(call.phase(), Phase::Sent(sent));
}

#[test]
fn attempt_that_is_not_sent_reports_no_time_of_sending() {
    let (call, sent) = (call(), Duration::from_secs(1));
    call.start_attempt(call.started()).unwrap();
    call.begin_watch();
    assert!(call.send(1, call.started() + sent));
    call.end_watch();
    call.end_attempt(Outcome::Response(http::StatusCode::SERVICE_UNAVAILABLE), None, None, None);
    call.start_attempt(call.started()).unwrap();
    assert_eq!(call.phase(), Phase::Unknown);
    call.end_attempt(Outcome::Refused, None, None, None);
    let reported = call.report().attempts().iter().map(|attempt| attempt.sent).collect::<Vec<_>>();
    assert_eq!(reported, [Some(sent), None]);
}

#[test]
fn phase_is_unknown_after_two_attempts_at_once() {
    let call = call();
    call.begin_watch();
    call.begin_watch();
    call.wait(true);
    call.end_watch();
    call.end_watch();
    assert_eq!(call.phase(), Phase::Unknown);
    call.begin_watch();
    call.wait(false);
    call.expire();
    assert_eq!((call.phase(), call.is_expired()), (Phase::Unknown, false));
}

#[test]
fn request_of_an_abandoned_attempt_is_never_sent_and_later_requests_of_the_call_are() {
    // The retry layer starts the next attempt, the attempt timeout begins to watch it, or neither.
    for (is_retried, is_watched) in [(true, true), (true, false), (false, true), (false, false)] {
        let call = call();
        call.begin_watch();
        assert!(!call.abandon(), "a client without phases may have sent the request");
        let first = call.take_request();
        call.wait(true);
        assert!(call.is_unsent() && call.abandon() && call.abandon() && call.is_unsent());
        call.wait(false);
        assert!(!call.send(first, call.started()));
        call.end_watch();
        if is_retried {
            call.start_attempt(call.started()).unwrap();
            assert!(!call.send(first, call.started()));
        }
        if is_watched {
            call.begin_watch();
            assert!(!call.send(first, call.started()));
        }
        let second = call.take_request();
        call.wait(true);
        assert!(!call.send(first, call.started()), "{is_retried} {is_watched}");
        assert!(call.send(second, call.started()) && !call.abandon(), "{is_retried} {is_watched}");
        assert!(!call.send(first, call.started()), "the latest attempt was sent");
    }
}

#[test]
fn attempt_is_not_abandoned_if_only_one_of_its_requests_was_returned() {
    let call = call();
    call.begin_watch();
    assert!(call.send(1, call.started()));
    call.returned(1);
    assert_eq!(call.phase(), Phase::Waiting);
    assert!(call.send(1, call.started()) && call.send(1, call.started()));
    call.returned(1);
    assert!(!call.abandon());
}

#[test]
fn requests_of_attempts_at_once_are_sent_and_not_abandoned() {
    let call = call();
    call.begin_watch();
    call.wait(true);
    call.begin_watch();
    assert!(!call.abandon());
    assert!(call.send(1, call.started()) && call.send(2, call.started()));
}

/// Returns a request that waits for its connection.
fn connecting() -> (Request<()>, CallContext, Context<'static>) {
    let mut request = Request::new(());
    let call = CallContext::of(request.extensions_mut());
    call.begin_watch();
    call.wait(true);
    (request, call, Context::from_waker(Waker::noop()))
}

#[test]
fn request_does_not_wait_for_its_permit_while_several_attempts_run() {
    let (request, call, mut cx) = connecting();
    assert!(call.renewal(&mut cx).is_none());
    assert!(call.poll_renewed(&request, &mut cx).is_pending());
    call.begin_watch();
    for attempt in ["first", "second"] {
        assert!(call.poll_renewed(&request, &mut cx).is_ready(), "{attempt}");
    }
}

#[test]
fn request_waits_for_the_permit_that_its_limiter_acquires_although_another_attempt_begins() {
    let (request, call, mut cx) = connecting();
    assert!(call.renewal(&mut cx).is_none());
    assert!(call.poll_renewed(&request, &mut cx).is_pending());
    assert!(call.renewal(&mut cx).is_some());
    call.begin_watch();
    assert!(call.poll_renewed(&request, &mut cx).is_pending());
    call.renewed();
    assert!(call.poll_renewed(&request, &mut cx).is_ready());
}

#[test]
fn outer_rate_limit_layer_does_not_answer_for_the_inner_one() {
    let (request, call, mut cx) = connecting();
    for layer in ["inner", "outer"] {
        assert!(call.renewal(&mut cx).is_none(), "{layer}");
    }
    assert!(call.poll_renewed(&request, &mut cx).is_pending());
    assert!(call.renewal(&mut cx).is_some(), "the inner layer checks its permit");
    for _ in 0..2 {
        assert!(call.renewal(&mut cx).is_none(), "the outer layer does not");
        assert!(call.poll_renewed(&request, &mut cx).is_pending());
    }
    call.renewed();
    assert!(call.renewal(&mut cx).is_none());
    assert!(call.poll_renewed(&request, &mut cx).is_ready());
}
