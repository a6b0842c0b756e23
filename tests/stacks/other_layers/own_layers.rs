//! Tests wrong orders of this crate's own layers. The guide's page `stack` has a table of these effects.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, BoxError, ErrorKind, Quota,
    auth::{AuthLayer, FreshKey, KeySource, Origin, RefreshingKey},
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    test_util::ScriptedService,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    URI,
    support::{get, request, secs},
};

/// Creates a limiter whose only permit of the minute is spent.
async fn spent() -> RateLimitLayer<LocalLimiter> {
    let limiter = LocalLimiter::paced_window(Quota::per_minute(1).unwrap());
    limiter.acquire().await.unwrap();
    RateLimitLayer::new(limiter)
}

/// Creates a source of the keys `key-1`, `key-2` and so on, each with a lifetime of 30 s.
fn keys() -> KeySource {
    let count = AtomicU32::new(0);
    let key = move || {
        let key = ApiKey::new(format!("key-{}", count.fetch_add(1, Relaxed) + 1)).map_err(BoxError::from);
        std::future::ready(key.map(|key| FreshKey::new(key).with_lifetime(secs(30))))
    };
    KeySource::from(RefreshingKey::new(key))
}

fn auth() -> AuthLayer {
    AuthLayer::new(keys(), Origin::parse(URI).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn request_id_inside_retry_gives_each_attempt_another_id() {
    let api = ScriptedService::new([503, 200]);
    let service =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(RequestIdLayer::new()).service(api.clone());
    service.oneshot(get(URI)).await.unwrap();
    let seen = api.seen();
    let ids: HashSet<_> = seen.iter().map(|seen| seen.header("x-request-id")).collect();
    assert_eq!((seen.len(), ids.len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn total_timeout_covers_the_wait_for_a_permit_only_outside_the_rate_limit() {
    let (total, api) = (TotalTimeoutLayer::new(secs(5)).unwrap(), ScriptedService::new([200]));
    let inside = ServiceBuilder::new().layer(spent().await).layer(total.clone()).service(api.clone());
    let start = Instant::now();
    assert_eq!(inside.oneshot(get(URI)).await.unwrap().status(), 200);
    assert!(start.elapsed() >= secs(60));

    let outside = ServiceBuilder::new().layer(total).layer(spent().await).service(api);
    let start = Instant::now();
    let error = outside.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(59)) && start.elapsed().is_zero());
}

#[tokio::test(start_paused = true)]
async fn rate_limit_outside_retry_does_not_count_retries() {
    let api = ScriptedService::new([503]);
    let limiter = LocalLimiter::paced_window(Quota::new(2, secs(10)).unwrap());
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter))
        .layer(RetryLayer::new())
        .service(api.clone());
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    assert!(api.arrivals().most_in(secs(10)) > 3);
}

#[tokio::test(start_paused = true)]
async fn auth_outside_the_rate_limit_sends_a_key_that_expired_during_the_wait() {
    let api = ScriptedService::new([200]);
    let service = ServiceBuilder::new().layer(auth()).layer(spent().await).service(api.clone());
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(api.seen()[0].header("authorization"), Some("Bearer key-1"));

    let api = ScriptedService::new([200]);
    let service = ServiceBuilder::new().layer(spent().await).layer(auth()).service(api.clone());
    // The key of the first request expires while the second request waits for its permit.
    service.clone().oneshot(get(URI)).await.unwrap();
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(api.seen()[1].header("authorization"), Some("Bearer key-2"));
}

#[tokio::test(start_paused = true)]
async fn auth_outside_retry_returns_the_401_of_a_replaced_key() {
    let api = || {
        ScriptedService::from_fn(|seen| match seen.header("authorization") {
            Some("Bearer key-2") => 200.into(),
            _ => 401.into(),
        })
    };
    let service = ServiceBuilder::new().layer(auth()).layer(RetryLayer::new()).service(api());
    assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 401);
    let service = ServiceBuilder::new().layer(RetryLayer::new()).layer(auth()).service(api());
    assert_eq!(service.oneshot(get(URI)).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn attempt_timeout_outside_the_rate_limit_covers_the_wait_and_stops_a_post() {
    let api = ScriptedService::new([200]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(AttemptTimeoutLayer::new(secs(10)).unwrap())
        .layer(spent().await)
        .service(api.clone());
    let start = Instant::now();
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!((error.kind(), api.calls(), start.elapsed()), (ErrorKind::AttemptTimeout, 0, secs(10)));
}

#[tokio::test(start_paused = true)]
async fn attempt_timeout_outside_retry_limits_the_whole_call() {
    let api = ScriptedService::new([503]);
    let service = ServiceBuilder::new()
        .layer(AttemptTimeoutLayer::new(secs(10)).unwrap())
        .layer(RetryLayer::new().with_custom_backoff(|| std::iter::repeat(secs(8))))
        .service(api.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!((error.kind(), api.calls()), (ErrorKind::AttemptTimeout, 2));
}
