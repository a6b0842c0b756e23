//! Tests the deadline of a call. A timeout layer, the caller or a custom layer can set the deadline.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Quota,
    body::ReplayBody,
    call::{Deadline, Outcome, StopReason},
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, secs},
};

fn get_with_deadline(deadline: Instant) -> Request<Content> {
    let mut request = get(URI);
    request.extensions_mut().insert(Deadline(deadline));
    request
}

fn retry_every_second() -> RetryLayer {
    RetryLayer::new()
        .without_budget()
        .with_max_attempts(100)
        .unwrap()
        .with_custom_backoff(|| std::iter::repeat(secs(1)))
}

/// Returns a limiter that has no permit left and grants its next permit after 60 s.
async fn limiter_without_permits() -> LocalLimiter {
    let bucket =
        LocalLimiter::token_bucket(Quota::new(2, secs(60)).unwrap().with_burst(1).unwrap().without_margin());
    RateLimitLayer::new(bucket.clone())
        .layer(ScriptedService::new([Status(200)]))
        .oneshot(get(URI))
        .await
        .unwrap();
    bucket
}

#[tokio::test(start_paused = true)]
async fn earlier_of_two_deadlines_limits_the_retries() {
    for (total, request_deadline) in
        [(Some(5_500), Some(2_500)), (Some(2_500), Some(5_500)), (Some(2_500), None)]
    {
        let inner = ScriptedService::new([Status(503)]);
        let start = Instant::now();
        let request = request_deadline.map_or(get(URI), |after| get_with_deadline(start + millis(after)));
        let total = TotalTimeoutLayer::new(millis(total.unwrap())).unwrap();
        let service = ServiceBuilder::new().layer(total).layer(retry_every_second()).service(inner.clone());
        let response = service.oneshot(request).await.unwrap();
        // The attempts start at 0 s, 1 s and 2 s. The call returns at 2 s, because a fourth attempt at 3 s would miss
        // the deadline of 2.5 s.
        assert_eq!((inner.calls(), report(&response).stop_reason()), (3, Some(StopReason::Deadline)));
        assert!((secs(2)..millis(2_010)).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn retry_layer_obeys_a_deadline_that_a_custom_layer_inserts() {
    let inner = ScriptedService::new([RetryAfter(503, "3"), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .map_request(|mut request: Request<Content>| {
            request.extensions_mut().insert(Deadline::after(secs(1)));
            request
        })
        .layer(RetryLayer::new())
        .service(inner.clone());
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(inner.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn attempt_can_start_at_the_deadline_but_not_after_it() {
    for (late, calls) in [(0, 1), (1, 0)] {
        let inner = ScriptedService::new([Status(200)]);
        let deadline = Instant::now();
        tokio::time::advance(millis(late)).await;
        let result = RetryLayer::new().layer(inner.clone()).oneshot(get_with_deadline(deadline)).await;
        assert_eq!(
            (result.is_ok(), inner.calls()),
            (late == 0, calls),
            "the call starts {late} ms after the deadline"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn earlier_of_two_deadlines_cancels_a_pending_attempt() {
    for (total, request_deadline) in [(5_500, 2_500), (2_500, 5_500)] {
        let total = TotalTimeoutLayer::new(millis(total)).unwrap();
        let service = ServiceBuilder::new()
            .layer(total)
            .layer(retry_every_second())
            .service(ScriptedService::new([NoResponse]));
        let start = Instant::now();
        let error = service.oneshot(get_with_deadline(start + millis(request_deadline))).await.unwrap_err();
        assert!(error.is_deadline(), "{error:?}");
        assert!((millis(2_500)..millis(2_502)).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    }
}

#[tokio::test(start_paused = true)]
async fn request_deadline_limits_waits_but_cancels_no_attempt() {
    let inner = ScriptedService::new([Status(503)]);
    let start = Instant::now();
    let response = retry_every_second()
        .layer(inner.clone())
        .oneshot(get_with_deadline(start + millis(3_500)))
        .await
        .unwrap();
    assert_eq!((inner.calls(), report(&response).stop_reason()), (4, Some(StopReason::Deadline)));
    assert!(start.elapsed() < millis(3_010), "{:?}", start.elapsed());

    let start = Instant::now();
    let inner = ScriptedService::new([Delayed(5_000, 200)]);
    let response =
        retry_every_second().layer(inner).oneshot(get_with_deadline(start + secs(1))).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), report(&response).stop_reason()),
        (200, Some(StopReason::Success))
    );
    let start = Instant::now();
    let inner = ScriptedService::new([Delayed(5_000, 503)]);
    let response =
        retry_every_second().layer(inner.clone()).oneshot(get_with_deadline(start + secs(1))).await.unwrap();
    assert_eq!((inner.calls(), report(&response).stop_reason()), (1, Some(StopReason::Deadline)));

    // The limiter refuses the request, because a wait of 60 s for a permit would exceed the deadline of 30 s.
    let limit = RateLimitLayer::new(limiter_without_permits().await);
    let start = Instant::now();
    let service = ServiceBuilder::new()
        .layer(retry_every_second())
        .layer(limit)
        .service(ScriptedService::new([Status(200)]));
    let error = service.oneshot(get_with_deadline(start + secs(30))).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(30)), "{error:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn deadline_shortens_the_timeout_of_the_last_attempt() {
    // A total timeout sets the deadline in the first case. The request's extensions set the deadline in the second
    // case.
    for with_total_timeout in [true, false] {
        let retry = ServiceBuilder::new()
            .layer(retry_every_second())
            .layer(AttemptTimeoutLayer::new(secs(10)).unwrap())
            .service(ScriptedService::new([NoResponse]));
        let start = Instant::now();
        let result = match with_total_timeout {
            true => TotalTimeoutLayer::new(secs(25)).unwrap().layer(retry).oneshot(get(URI)).await,
            false => retry.oneshot(get_with_deadline(start + secs(25))).await,
        };
        let error = result.unwrap_err();
        assert!(error.is_deadline(), "{error:?}");
        assert!((secs(25)..millis(25_002)).contains(&start.elapsed()), "{:?}", start.elapsed());
        let report = error.report().unwrap();
        assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
        let attempts = report.attempts();
        assert_eq!(attempts.len(), 3, "the attempts should start at 0 s, 11 s and 22 s");
        for attempt in &attempts[..2] {
            let duration = attempt.ended.unwrap() - attempt.started;
            assert!((secs(10)..millis(10_002)).contains(&duration), "{duration:?}");
            assert_eq!(attempt.outcome, Some(Outcome::Timeout));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queue_wait_counts_toward_the_deadline_but_not_the_attempt_timeout() {
    let stack = |bucket, total, response| {
        let inner = ScriptedService::new([response]);
        let service = ServiceBuilder::new()
            .layer(TotalTimeoutLayer::new(total).unwrap())
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(bucket))
            .layer(AttemptTimeoutLayer::new(millis(500)).unwrap())
            .service(inner.clone());
        (service, inner)
    };
    // The call waits 60 s for a permit. Its attempt takes 400 ms, which is less than the attempt timeout of 500 ms.
    let (service, inner) = stack(limiter_without_permits().await, secs(61), Delayed(400, 200));
    let response = service.oneshot(get(URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), inner.calls()), (200, 1));
    let waited = report(&response).waited();
    assert!((secs(59)..=secs(61)).contains(&waited), "{waited:?}");

    // The call waits 60 s for a permit, which leaves 300 ms before the deadline.
    let bucket = limiter_without_permits().await;
    let left = secs(60) + millis(300);
    let start = Instant::now();
    let (service, _) = stack(bucket, left, NoResponse);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    assert!((left..left + millis(2)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(error.report().unwrap().attempt_count(), 1);

    // The limiter immediately refuses a request that would wait for a permit beyond the deadline.
    let start = Instant::now();
    let (service, inner) = stack(limiter_without_permits().await, secs(59), Status(200));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(59)), "{error:?}");
    assert_eq!((inner.calls(), start.elapsed()), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn retry_and_timeout_layers_send_no_request_after_the_deadline() {
    tokio::time::advance(secs(10)).await;
    let inner = ScriptedService::new([Status(503)]);
    let past_deadline = || get_with_deadline(Instant::now() - secs(5));
    let error = RetryLayer::new().layer(inner.clone()).oneshot(past_deadline()).await.unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    // A timeout layer without a retry layer also obeys the deadline in the request's extensions.
    let attempt = AttemptTimeoutLayer::new(secs(60)).unwrap();
    let service =
        attempt.layer(inner.clone().map_request(|request: Request<Content>| request.map(ReplayBody::new)));
    assert!(service.oneshot(past_deadline()).await.unwrap_err().is_deadline());
    assert_eq!(inner.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn call_that_is_polled_after_its_deadline_makes_no_further_attempt() {
    let inner = ScriptedService::new([Status(503)]);
    let service = RetryLayer::new().layer(inner.clone());
    let mut call = tokio_test::task::spawn(service.oneshot(get_with_deadline(Instant::now() + secs(2))));
    tokio_test::assert_pending!(call.poll());
    tokio::time::advance(secs(60)).await;
    assert!(tokio_test::assert_ready!(call.poll()).unwrap_err().is_deadline());
    assert_eq!(inner.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn timeout_or_limit_layer_without_a_retry_layer_obeys_the_request_deadline() {
    let start = Instant::now();
    let never_responds = || {
        ScriptedService::new([NoResponse])
            .map_request(|request: Request<Content>| request.map(ReplayBody::new))
    };
    let attempt = AttemptTimeoutLayer::new(secs(10)).unwrap().layer(never_responds());
    assert!(attempt.oneshot(get_with_deadline(start + secs(1))).await.unwrap_err().is_deadline());
    assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
    let bucket =
        LocalLimiter::token_bucket(Quota::new(2, secs(60)).unwrap().without_margin()).with_initial_burst(0);
    let limit = RateLimitLayer::new(bucket).layer(never_responds());
    assert!(limit.oneshot(get_with_deadline(Instant::now() + secs(1))).await.unwrap_err().is_rate_limited());
}
