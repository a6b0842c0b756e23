//! Tests a retry layer whose inner service has a rate limiter.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::{
    ExponentialBackoff, Jitter, Quota,
    call::{Outcome, RequestHead, StopReason::*},
    limit::{LocalLimiter, RateLimitLayer},
    retry::{AttemptResult, RetryLayer},
};

use super::{
    URI, report,
    support::{Scripted::*, ScriptedService, get, millis, secs},
};

#[tokio::test(start_paused = true)]
async fn each_attempt_acquires_a_permit_and_reports_its_wait() {
    let bucket = LocalLimiter::token_bucket(Quota::per_minute(1).unwrap().without_margin());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket))
        .service(ScriptedService::new([Status(503), Status(200)]));
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempts = report(&response).attempts();
    assert_eq!(attempts[0].waited, Duration::ZERO);
    assert!((secs(59)..=secs(61)).contains(&attempts[1].waited), "{:?}", attempts[1].waited);
    assert_eq!(report(&response).waited(), attempts[1].waited);
}

#[tokio::test(start_paused = true)]
async fn call_ends_if_the_limiter_refuses_a_retry() {
    let bucket = LocalLimiter::token_bucket(Quota::per_minute(1).unwrap().without_margin());
    let inner = ScriptedService::new([Status(503)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket).with_max_wait(secs(1)))
        .service(inner.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(50)), "{error:?}");
    let report = error.report().unwrap();
    assert_eq!((inner.calls(), report.stop_reason()), (1, Some(NotRetryable)));
    assert_eq!(report.attempts()[1].outcome, Some(Outcome::Refused));
}

/// The limiter refuses the first attempt because the wait for a permit is too long. Only the error of this attempt
/// contains the wait.
#[tokio::test(start_paused = true)]
async fn wait_for_a_permit_appears_only_in_the_error_of_the_refused_attempt() {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&errors);
    let retry_every_error = move |_: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        attempt.error.is_some_and(|error| {
            recorded.lock().unwrap().push((error.is_rate_limited(), error.retry_after().is_some()));
            true
        })
    };
    let quota = Quota::new(4, secs(4)).and_then(|quota| quota.with_burst(1)).unwrap().without_margin();
    let bucket = LocalLimiter::token_bucket(quota);
    bucket.try_acquire().unwrap();
    let backoff = ExponentialBackoff::new(secs(5), secs(5)).unwrap().with_jitter(Jitter::none());
    let service = ServiceBuilder::new()
        .layer(
            RetryLayer::new().with_max_attempts(2).unwrap().with_backoff(backoff).retry_if(retry_every_error),
        )
        .layer(RateLimitLayer::new(bucket).with_max_wait(millis(1)))
        .service(ScriptedService::new([Refused]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(*errors.lock().unwrap(), [(true, true), (false, false)]);
    assert_eq!(error.retry_after(), None, "{error}");
}
