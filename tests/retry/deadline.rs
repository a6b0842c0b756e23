//! The deadline of a call, from each of its sources.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Quota,
    body::ReplayBody,
    call::{Deadline, Outcome, StopReason},
    limit::{RateLimitLayer, TokenBucket},
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, secs},
};

fn until(deadline: Instant) -> Request<Content> {
    let mut request = get(URI);
    request.extensions_mut().insert(Deadline(deadline));
    request
}

fn each_second() -> RetryLayer {
    RetryLayer::new()
        .without_budget()
        .with_max_attempts(100)
        .unwrap()
        .with_custom_backoff(|| std::iter::repeat(secs(1)))
}

/// Returns a limiter of one request per minute, whose first permit is spent.
async fn spent() -> TokenBucket {
    let bucket = TokenBucket::new(Quota::new(2, secs(60)).unwrap().with_burst(1).unwrap().without_margin());
    RateLimitLayer::new(bucket.clone())
        .layer(ScriptedService::new([Status(200)]))
        .oneshot(get(URI))
        .await
        .unwrap();
    bucket
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_deadlines_bounds_the_retries() {
    for (total, own) in [(Some(5_500), Some(2_500)), (Some(2_500), Some(5_500)), (Some(2_500), None)] {
        let probe = ScriptedService::new([Status(503)]);
        let start = Instant::now();
        let request = own.map_or(get(URI), |own| until(start + millis(own)));
        let total = TimeoutLayer::total(millis(total.unwrap())).unwrap();
        let service = ServiceBuilder::new().layer(total).layer(each_second()).service(probe.clone());
        let response = service.oneshot(request).await.unwrap();
        // Attempts at 0 s, 1 s and 2 s. The next would be at 3 s, so the response is returned now and not at 2.5 s.
        assert_eq!((probe.calls(), report(&response).stop_reason()), (3, Some(StopReason::Deadline)));
        assert!((secs(2)..millis(2_010)).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_may_start_at_the_deadline_and_not_after_it() {
    for (late, calls) in [(0, 1), (1, 0)] {
        let probe = ScriptedService::new([Status(200)]);
        let deadline = Instant::now();
        tokio::time::advance(millis(late)).await;
        let answered = RetryLayer::new().layer(probe.clone()).oneshot(until(deadline)).await;
        assert_eq!((answered.is_ok(), probe.calls()), (late == 0, calls), "{late} ms late");
    }
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_deadlines_cancels_an_attempt() {
    for (total, own) in [(5_500, 2_500), (2_500, 5_500)] {
        let total = TimeoutLayer::total(millis(total)).unwrap();
        let service = ServiceBuilder::new()
            .layer(total)
            .layer(each_second())
            .service(ScriptedService::new([NoResponse]));
        let start = Instant::now();
        let error = service.oneshot(until(start + millis(own))).await.unwrap_err();
        assert!(error.is_deadline(), "{error:?}");
        assert!((millis(2_500)..millis(2_502)).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_without_a_timeout_layer_bounds_waits_and_cancels_no_attempt() {
    let probe = ScriptedService::new([Status(503)]);
    let start = Instant::now();
    let response = each_second().layer(probe.clone()).oneshot(until(start + millis(3_500))).await.unwrap();
    assert_eq!((probe.calls(), report(&response).stop_reason()), (4, Some(StopReason::Deadline)));
    assert!(start.elapsed() < millis(3_010), "{:?}", start.elapsed());

    let start = Instant::now();
    let probe = ScriptedService::new([Delayed(5_000, 200)]);
    let response = each_second().layer(probe).oneshot(until(start + secs(1))).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), report(&response).stop_reason()),
        (200, Some(StopReason::Success))
    );
    let start = Instant::now();
    let probe = ScriptedService::new([Delayed(5_000, 503)]);
    let response = each_second().layer(probe.clone()).oneshot(until(start + secs(1))).await.unwrap();
    assert_eq!((probe.calls(), report(&response).stop_reason()), (1, Some(StopReason::Deadline)));

    // The limiter obeys the deadline, too: this wait would be 60 s.
    let limit = RateLimitLayer::new(spent().await);
    let start = Instant::now();
    let service =
        ServiceBuilder::new().layer(each_second()).layer(limit).service(ScriptedService::new([Status(200)]));
    let error = service.oneshot(until(start + secs(30))).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(30)), "{error:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_shortens_the_timeout_of_an_attempt() {
    // With the deadline of a total timeout layer, and with that of the request alone.
    for outer in [true, false] {
        let inner = ServiceBuilder::new()
            .layer(each_second())
            .layer(TimeoutLayer::per_attempt(secs(10)).unwrap())
            .service(ScriptedService::new([NoResponse]));
        let start = Instant::now();
        let result = match outer {
            true => TimeoutLayer::total(secs(25)).unwrap().layer(inner).oneshot(get(URI)).await,
            false => inner.oneshot(until(start + secs(25))).await,
        };
        let error = result.unwrap_err();
        assert!(error.is_deadline(), "{error:?}");
        assert!((secs(25)..millis(25_002)).contains(&start.elapsed()), "{:?}", start.elapsed());
        let report = error.report().unwrap();
        assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
        let attempts = report.attempts();
        assert_eq!(attempts.len(), 3, "at 0 s, 11 s and 22 s");
        for attempt in &attempts[..2] {
            let took = attempt.ended.unwrap() - attempt.started;
            assert!((secs(10)..millis(10_002)).contains(&took), "{took:?}");
            assert_eq!(attempt.outcome, Some(Outcome::Timeout));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_permit_counts_against_the_deadline_and_not_the_attempt_timeout() {
    let stack = |bucket, total, answer| {
        let probe = ScriptedService::new([answer]);
        let service = ServiceBuilder::new()
            .layer(TimeoutLayer::total(total).unwrap())
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(bucket))
            .layer(TimeoutLayer::per_attempt(millis(500)).unwrap())
            .service(probe.clone());
        (service, probe)
    };
    // The wait for the permit takes a minute, and the attempt 400 of its 500 ms.
    let (service, probe) = stack(spent().await, secs(61), Delayed(400, 200));
    let response = service.oneshot(get(URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), probe.calls()), (200, 1));
    let waited = report(&response).waited();
    assert!((secs(59)..=secs(61)).contains(&waited), "{waited:?}");

    // The wait for the permit leaves 300 ms before the deadline.
    let bucket = spent().await;
    let left = secs(60) + millis(300);
    let start = Instant::now();
    let (service, _) = stack(bucket, left, NoResponse);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    assert!((left..left + millis(2)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(error.report().unwrap().attempt_count(), 1);

    // A wait that exceeds the deadline is refused at once.
    let start = Instant::now();
    let (service, probe) = stack(spent().await, secs(59), Status(200));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(59)), "{error:?}");
    assert_eq!((probe.calls(), start.elapsed()), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn sends_nothing_after_the_deadline_has_passed() {
    tokio::time::advance(secs(10)).await;
    let probe = ScriptedService::new([Status(503)]);
    let late = || until(Instant::now() - secs(5));
    let error = RetryLayer::new().layer(probe.clone()).oneshot(late()).await.unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    // A timeout layer without a retry layer reads the deadline, too.
    let attempt = TimeoutLayer::per_attempt(secs(60)).unwrap();
    let service =
        attempt.layer(probe.clone().map_request(|request: Request<Content>| request.map(ReplayBody::new)));
    assert!(service.oneshot(late()).await.unwrap_err().is_deadline());
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_polled_after_the_deadline_makes_no_further_attempt() {
    let probe = ScriptedService::new([Status(503)]);
    let service = RetryLayer::new().layer(probe.clone());
    let mut call = tokio_test::task::spawn(service.oneshot(until(Instant::now() + secs(2))));
    tokio_test::assert_pending!(call.poll());
    tokio::time::advance(secs(60)).await;
    assert!(tokio_test::assert_ready!(call.poll()).unwrap_err().is_deadline());
    assert_eq!(probe.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_single_layer_obeys_the_deadline_of_the_request() {
    let start = Instant::now();
    let silent = || {
        ScriptedService::new([NoResponse])
            .map_request(|request: Request<Content>| request.map(ReplayBody::new))
    };
    let attempt = TimeoutLayer::per_attempt(secs(10)).unwrap().layer(silent());
    assert!(attempt.oneshot(until(start + secs(1))).await.unwrap_err().is_deadline());
    assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
    let bucket = TokenBucket::new(Quota::new(2, secs(60)).unwrap().without_margin()).with_initial_burst(0);
    let limit = RateLimitLayer::new(bucket).layer(silent());
    assert!(limit.oneshot(until(Instant::now() + secs(1))).await.unwrap_err().is_rate_limited());
}
