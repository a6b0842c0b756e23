//! The timeout layers, over doubles and on paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod body_idle;
#[path = "../support/mod.rs"]
mod support;

use std::{convert::Infallible, error::Error as _, future::pending, task::Poll, time::Duration};

use crate::support::{Content, Scripted::*, ScriptedService, get, millis, request, secs};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Error, Quota, Report,
    call::{CallContext, Outcome, StopReason},
    limit::{RateLimitLayer, TokenBucket},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

const URI: &str = "https://api.example.com/v1";

fn total(limit: Duration) -> TimeoutLayer {
    TimeoutLayer::total(limit).unwrap()
}

fn attempt(limit: Duration) -> TimeoutLayer {
    TimeoutLayer::per_attempt(limit).unwrap()
}

#[test]
fn zero_is_refused_with_the_name_of_the_field() {
    for (refused, field) in [
        (TimeoutLayer::total(Duration::ZERO), "total timeout"),
        (TimeoutLayer::per_attempt(Duration::ZERO), "attempt timeout"),
    ] {
        let error = refused.unwrap_err();
        assert_eq!((error.field(), error.value()), (field, "0ns"));
        assert_eq!(error.to_string(), format!("invalid {field} `0ns`: expected more than zero"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_runs_over_its_total_is_a_deadline() {
    let probe = ScriptedService::new([NoResponse]);
    let start = Instant::now();
    let error = total(millis(1500)).layer(probe.clone()).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(start.elapsed(), millis(1500));
    assert!(error.is_timeout() && error.is_deadline() && !error.is_service());
    assert_eq!(error.to_string(), "deadline of 1.5s exceeded");
    assert!(error.source().is_none());
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    assert_eq!(probe.instances(), 1, "the attempt is dropped");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_over_is_a_timeout_and_no_deadline() {
    let start = Instant::now();
    let error =
        attempt(secs(2)).layer(ScriptedService::new([NoResponse])).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(start.elapsed(), secs(2));
    assert!(error.is_timeout() && !error.is_deadline());
    assert_eq!(error.to_string(), "no response within 2s");
    assert!(error.report().is_none(), "no layer keeps a report here");
}

#[tokio::test(start_paused = true)]
async fn an_attempts_timeout_shrinks_to_what_is_left_of_the_deadline() {
    for (total_millis, attempt_millis, expected, deadline) in [
        (1000, 5000, 1000, true),
        (5000, 1000, 1000, false),
        (1000, 1000, 1000, true), // what comes first names it, and the deadline comes first in a draw
    ] {
        let service = ServiceBuilder::new()
            .layer(total(millis(total_millis)))
            .layer(attempt(millis(attempt_millis)))
            .service(ScriptedService::new([NoResponse]));
        let start = Instant::now();
        let error = service.oneshot(get(URI)).await.unwrap_err();
        assert_eq!(start.elapsed(), millis(expected), "{total_millis} {attempt_millis}");
        assert!(error.is_timeout());
        assert_eq!(error.is_deadline(), deadline, "{total_millis} {attempt_millis}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_third_attempt_has_only_what_the_first_two_left() {
    let service = ServiceBuilder::new()
        .layer(total(secs(5)))
        .layer(RetryLayer::new())
        .layer(attempt(secs(2)))
        .service(ScriptedService::new([NoResponse]));
    let start = Instant::now();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(start.elapsed(), secs(5));
    assert!(error.is_deadline());
    assert_eq!(error.to_string(), "deadline of 5s exceeded after 3 attempts");
    let report = error.report().unwrap();
    assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
    let attempts = report.attempts();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|attempt| attempt.outcome == Some(Outcome::Timeout)));
    assert_eq!(attempts[2].ended, Some(secs(5)));
    let third = attempts[2].ended.unwrap() - attempts[2].started;
    assert!(third < secs(1), "{third:?}");
}

#[tokio::test(start_paused = true)]
async fn without_an_attempt_timeout_the_report_still_tells_of_the_attempt_that_was_cut_off() {
    let service = ServiceBuilder::new()
        .layer(total(secs(5)))
        .layer(RetryLayer::new())
        .service(ScriptedService::new([Status(503), NoResponse]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline());
    let report = error.report().unwrap();
    assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
    let attempts = report.attempts();
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0].outcome, Some(Outcome::Response(http::StatusCode::SERVICE_UNAVAILABLE)));
    assert_eq!((attempts[1].number, attempts[1].outcome, attempts[1].ended), (2, None, None));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_covers_a_wait_for_readiness_under_retry_and_a_wait_for_the_limiter() {
    let never_ready = tower::limit::ConcurrencyLimit::new(ScriptedService::new([Status(200)]), 0);
    let service = ServiceBuilder::new().layer(total(secs(3))).layer(RetryLayer::new()).service(never_ready);
    let start = Instant::now();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline());
    assert_eq!(start.elapsed(), secs(3));

    let bucket = TokenBucket::new(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(total(secs(3)))
        .layer(RateLimitLayer::new(bucket))
        .service(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get(URI)).await.unwrap();
    let start = Instant::now();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(3)), "{error:?}");
    assert_eq!(start.elapsed(), Duration::ZERO, "what can't fit is refused at once");
}

/// Polls what it is given once, and then keeps it without a look.
fn forgets<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    let mut future = Some(Box::pin(future));
    std::future::poll_fn(move |cx| match future.take() {
        Some(mut first) => {
            assert!(first.as_mut().poll(cx).is_pending());
            std::mem::forget(first);
            Poll::Pending
        }
        None => Poll::Pending,
    })
}

/// An attempt's timer may go off at the deadline, too, but the deadline has one of its own.
#[tokio::test(start_paused = true)]
async fn the_deadline_holds_whatever_becomes_of_the_attempts_timer() {
    // It goes off too late for the deadline.
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(attempt(secs(10)))
        .layer(RetryLayer::new())
        .layer(total(secs(5)))
        .service(ScriptedService::new([Status(503), NoResponse]));
    let start = Instant::now();
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_deadline());
    assert_eq!(start.elapsed(), secs(5));

    // Nobody asks the attempt any more that it belongs to.
    for limit in [secs(2), secs(10)] {
        let inner = attempt(limit).layer(ScriptedService::new([NoResponse]));
        let service = ServiceBuilder::new()
            .layer(total(secs(5)))
            .service(service_fn(move |request: Request<Content>| forgets(inner.clone().oneshot(request))));
        let start = Instant::now();
        assert!(service.oneshot(get(URI)).await.unwrap_err().is_deadline());
        assert_eq!(start.elapsed(), secs(5), "{limit:?}");
    }

    // Another task asks it from then on.
    let inner = attempt(secs(2)).layer(ScriptedService::new([NoResponse]));
    let service =
        ServiceBuilder::new().layer(total(secs(5))).service(service_fn(move |request: Request<Content>| {
            let mut answer = Box::pin(inner.clone().oneshot(request));
            async move {
                assert!(tokio::time::timeout(millis(50), answer.as_mut()).await.is_err());
                tokio::spawn(answer);
                pending::<Result<Response<Full<Bytes>>, Infallible>>().await
            }
        }));
    let start = Instant::now();
    let error = tokio::time::timeout(secs(60), service.oneshot(get(URI))).await.unwrap().unwrap_err();
    assert!(error.is_deadline());
    assert_eq!(start.elapsed(), secs(5));

    // The attempt is over, and what follows it takes for ever.
    let inner = attempt(secs(2)).layer(ScriptedService::new([Delayed(100, 200)]));
    let service =
        ServiceBuilder::new().layer(total(secs(5))).service(service_fn(move |request: Request<Content>| {
            let answer = inner.clone().oneshot(request);
            async move {
                let _ = answer.await;
                pending::<Result<Response<Full<Bytes>>, Infallible>>().await
            }
        }));
    let start = Instant::now();
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_deadline());
    assert_eq!(start.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_the_same_tick_wins() {
    for layer in [total(millis(100)), attempt(millis(100))] {
        let response = layer.layer(ScriptedService::new([Delayed(100, 200)])).oneshot(get(URI)).await;
        assert_eq!(response.unwrap().status(), 200, "{layer:?}");
        assert!(layer.layer(ScriptedService::new([Delayed(101, 200)])).oneshot(get(URI)).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_there_wins_however_late_the_task_gets_its_turn() {
    for layer in [total(millis(100)), attempt(millis(100))] {
        let probe = ScriptedService::new([Delayed(50, 200)]);
        let mut call = task::spawn(layer.layer(probe).oneshot(get(URI)));
        assert_pending!(call.poll());
        tokio::time::advance(secs(60)).await;
        assert!(call.is_woken());
        assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
    }
}

#[test]
fn what_is_ready_at_once_needs_no_runtime() {
    for layer in [total(secs(1)), attempt(secs(1))] {
        let service = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
        let mut call = task::spawn(layer.layer(service).oneshot(Request::new(())));
        assert_ready_ok!(call.poll());
    }
    // And so does the whole stack, but for the client.
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(total(secs(1)))
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100).unwrap())))
        .layer(attempt(secs(1)))
        .service(ScriptedService::new([Status(200)]));
    assert_ready_ok!(task::spawn(service.oneshot(get(URI))).poll());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_drops_the_work() {
    for layer in [total(secs(1)), attempt(secs(1))] {
        let probe = ScriptedService::new([NoResponse]);
        let mut call = task::spawn(layer.layer(probe.clone()).oneshot(get(URI)));
        assert_pending!(call.poll());
        drop(call);
        assert_eq!(probe.instances(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_deadlines_is_kept_and_the_inner_service_can_read_it() {
    let start = Instant::now();
    for (outer, inner, expected) in [(2, 60, 2), (60, 2, 2)] {
        let probe = ScriptedService::new([Status(200)]);
        let service = ServiceBuilder::new()
            .layer(total(secs(outer)))
            .layer(total(secs(inner)))
            .layer(attempt(secs(1)))
            .service(probe.clone());
        service.oneshot(get(URI)).await.unwrap();
        let deadline = probe.seen()[0].head.extensions.get::<CallContext>().unwrap().deadline().unwrap();
        assert_eq!(deadline - start, secs(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_of_limits_is_no_overflow() {
    for layer in [total(Duration::MAX), attempt(Duration::MAX)] {
        let response = layer.layer(ScriptedService::new([Delayed(60_000, 200)])).oneshot(get(URI)).await;
        assert_eq!(response.unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_service_is_passed_on_with_its_source() {
    let error = total(secs(1)).layer(ScriptedService::new([Refused])).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_timeout());
    assert!(support::cause::<std::io::Error>(&error).is_some());
}

/// Its own, and that of an attempt which the total's deadline did not cut off.
#[tokio::test(start_paused = true)]
async fn an_error_under_a_total_has_the_calls_report() {
    for answer in [Refused, NoResponse] {
        let service = ServiceBuilder::new()
            .layer(total(secs(9)))
            .layer(attempt(secs(1)))
            .service(ScriptedService::new([answer]));
        let error = service.oneshot(get(URI)).await.unwrap_err();
        assert_eq!((error.is_service(), error.is_deadline()), (matches!(answer, Refused), false));
        assert!(error.report().is_some_and(|report| report.stop_reason().is_none()), "{answer:?}");
    }
}

/// A layer between the one that made the call and the attempt's timeout.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_slow_attempt_has_the_calls_id_on_its_way_already() {
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_err(|error: Error| {
            assert!(error.request_id().is_some() && error.is_timeout());
            error
        })
        .layer(attempt(secs(1)))
        .service(ScriptedService::new([NoResponse]));
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_timeout());
}

/// A client below that makes a call of its own.
#[tokio::test(start_paused = true)]
async fn the_report_of_a_call_further_in_is_kept_in_its_error() {
    let inner =
        RetryLayer::new().with_max_attempts(2).unwrap().layer(ScriptedService::new([Refused, Refused]));
    let below = service_fn(move |_: Request<Content>| inner.clone().oneshot(get(URI)));
    let error = total(secs(9)).layer(below).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_post_that_timed_out_is_not_sent_again() {
    let probe = ScriptedService::new([NoResponse]);
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(attempt(secs(1))).service(probe.clone());
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(probe.calls(), 1);
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotIdempotent));
}

#[tokio::test(start_paused = true)]
async fn the_body_of_the_answer_is_not_under_the_timer() {
    let service = service_fn(|_: Request<Content>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("slow")))
    });
    let response = total(secs(1)).layer(service).oneshot(get(URI)).await.unwrap();
    tokio::time::advance(secs(60)).await;
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
    assert_eq!(body.to_bytes(), "slow");
}

#[tokio::test(start_paused = true)]
async fn an_answer_under_a_total_alone_has_no_report_of_attempts() {
    let service = total(secs(1)).layer(ScriptedService::new([Status(200)]));
    let response = service.oneshot(get(URI)).await.unwrap();
    assert!(response.extensions().get::<Report>().is_none_or(|report| report.attempt_count() == 0));
    let silent = service_fn(|_: Request<Content>| pending::<Result<Response<Content>, Infallible>>());
    let error = total(secs(1)).layer(silent).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 0);
}
