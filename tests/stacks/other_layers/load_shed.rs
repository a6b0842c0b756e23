//! Tests tower's `LoadShed` together with tower's `ConcurrencyLimit`.

use std::time::Duration;

use futures_util::future::join_all;
use tower::{
    ServiceBuilder, ServiceExt,
    limit::ConcurrencyLimitLayer,
    load_shed::{LoadShedLayer, error::Overloaded},
};
use tower_outbound::{
    ApiKey, Error, ExponentialBackoff, Jitter, Report,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    call::Outcome,
    limit::RateLimitLayer,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    URI, bucket, methods, outcomes, rates,
    support::{Limited, Scripted::*, ScriptedService, cause, get, millis, request, secs},
};

#[tokio::test(start_paused = true)]
async fn post_rejected_by_load_shed_inside_the_retry_layer_is_retried() {
    let client = ScriptedService::new([Delayed(30, 200), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(client.clone());
    let calls = [service.clone().oneshot(request("POST", URI)), service.oneshot(request("POST", URI))];
    let results = join_all(calls).await;
    let rejected = Report::from_response(results[1].as_ref().unwrap()).unwrap();
    assert_eq!(outcomes(rejected)[0], Outcome::NotSent);
    assert_eq!(results[0].as_ref().unwrap().status(), 200);
    assert_eq!(methods(&client), ["POST", "POST"], "one request for each call");
}

#[tokio::test(start_paused = true)]
async fn call_fails_as_overloaded_if_load_shed_rejects_every_attempt() {
    let client = ScriptedService::new([NoResponse]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(client.clone());
    let _holder = tokio::spawn(service.clone().oneshot(get(URI)));
    tokio::time::sleep(millis(1)).await;
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_rate_limited() && cause::<Overloaded>(&error).is_some());
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::NotSent; 3]);
}

/// A request that `LoadShed` rejects spends no permit if `LoadShed` is outside the limiter.
#[tokio::test(start_paused = true)]
async fn request_rejected_by_load_shed_inside_the_limiter_spends_its_permit() {
    let (shed, slots) = (LoadShedLayer::new(), ConcurrencyLimitLayer::new(1));
    let client = ScriptedService::new([Delayed(30, 200)]);
    let limiter = bucket(20);
    let limit = RateLimitLayer::new(limiter.clone());
    let below = ServiceBuilder::new().layer(&limit).layer(&shed).layer(&slots).service(client.clone());
    let results = join_all((0..2).map(|_| below.clone().oneshot(get(URI)))).await;
    assert!(results[0].is_ok() && results[1].is_err());
    assert_eq!((client.calls(), limiter.snapshot().granted), (1, 2));

    let above = ServiceBuilder::new().layer(&shed).layer(&slots).layer(&limit).service(client.clone());
    let results = join_all((0..2).map(|_| above.clone().oneshot(get(URI)))).await;
    assert!(results[0].is_ok() && results[1].is_err());
    assert_eq!((client.calls(), limiter.snapshot().granted), (2, 3));
}

/// A limiter is always ready, so `LoadShed` around it rejects no call. The limiter's own settings bound the wait.
#[tokio::test(start_paused = true)]
async fn load_shed_around_a_limiter_rejects_calls_only_with_a_concurrency_limit() {
    let limit = || RateLimitLayer::new(bucket(2));
    let plain = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit())
        .service(ScriptedService::new([Status(200)]));
    assert!(join_all((0..3).map(|_| plain.clone().oneshot(get(URI)))).await.iter().all(Result::is_ok));

    let bounded = limit().with_max_wait(Duration::ZERO);
    let bounded = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(bounded)
        .service(ScriptedService::new([Status(200)]));
    let results = join_all((0..3).map(|_| bounded.clone().oneshot(get(URI)))).await;
    let refused = |result: &&Result<_, tower::BoxError>| {
        let error = result.as_ref().err().and_then(|error| error.downcast_ref::<Error>());
        error.is_some_and(Error::is_rate_limited)
    };
    assert_eq!(results.iter().filter(refused).count(), 2);

    let limited = ServiceBuilder::new().layer(LoadShedLayer::new()).layer(ConcurrencyLimitLayer::new(1));
    let limited = limited.layer(limit()).service(ScriptedService::new([Status(200)]));
    limited.clone().oneshot(get(URI)).await.unwrap();
    let results = join_all((0..2).map(|_| limited.clone().oneshot(get(URI)))).await;
    assert!(results[0].is_ok() && results[1].as_ref().is_err_and(|error| error.is::<Overloaded>()));
}

/// The rate limit layer and the retry layer wait in the call's future. All other layers forward the readiness.
#[tokio::test(start_paused = true)]
async fn load_shed_rejects_calls_to_an_unready_service_except_above_a_layer_that_is_always_ready() {
    macro_rules! rejects {
        ($layer:expr) => {{
            let never = Limited::over(ScriptedService::new([Status(200)])).with_permits(0);
            let service = ServiceBuilder::new().layer(LoadShedLayer::new()).layer($layer).service(never);
            let call = tokio::time::timeout(secs(300), service.oneshot(get(URI))).await;
            call.is_ok_and(|result| result.is_err_and(|error| error.is::<Overloaded>()))
        }};
    }
    let auth = AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    let (total, attempt) =
        (TotalTimeoutLayer::new(secs(60)).unwrap(), AttemptTimeoutLayer::new(secs(10)).unwrap());
    assert!(rejects!((RequestIdLayer::new(), total, AttemptSpanLayer::new(), auth, attempt)));
    assert!(rejects!(BodyIdleTimeoutLayer::new(secs(1)).unwrap()));
    assert!(!rejects!(RateLimitLayer::new(bucket(6))));
    assert!(!rejects!(RetryLayer::new()));
    assert!(!rejects!(rates().layer().unwrap()));
}

/// An attempt that `LoadShed` rejects counts as not sent, so a POST is retried until the service is ready.
#[tokio::test(start_paused = true)]
async fn later_attempt_reaches_a_service_that_became_ready_behind_load_shed() {
    let client = Limited::over(ScriptedService::new([Delayed(100, 200), Status(200)])).with_permits(1);
    tokio::spawn(client.clone().oneshot(get(URI)));
    tokio::time::sleep(millis(1)).await;
    let (backoff, limiter) = (ExponentialBackoff::new(millis(60), secs(1)).unwrap(), bucket(20));
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_backoff(backoff.with_jitter(Jitter::none())))
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(LoadShedLayer::new())
        .service(client.clone());
    let response = service.oneshot(request("POST", URI)).await.unwrap();
    let report = Report::from_response(&response).unwrap();
    assert_eq!(outcomes(report), [Outcome::NotSent, Outcome::NotSent, Outcome::Response(response.status())]);
    // Each of the three attempts spent a permit. The first request of the client is that which kept it busy.
    assert_eq!((client.calls(), limiter.snapshot().granted), (2, 3));
}
