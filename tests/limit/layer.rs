//! Tests of `RateLimitLayer`: shared limiters, the readiness of the inner service, and cancelled calls.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Method, Request, Version};
use tokio::{
    sync::Semaphore,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Service, ServiceExt, limit::ConcurrencyLimit};
use tower_layer::Layer;
use tower_outbound::{
    call::CallContext,
    limit::{AnyLimiter, Keyed, Limiter, LocalLimiter, PermitRequest, RateLimitLayer},
    request_id::RequestIdLayer,
};

use crate::{
    ReadyAfter, bucket, millis, ok_service, one_per_second,
    support::{Scripted::Status, ScriptedService, get},
};

#[tokio::test(start_paused = true)]
async fn clones_of_a_rate_limit_layer_share_the_permits_of_one_limiter() {
    let layer = RateLimitLayer::new(bucket(11, 10, 1)).with_max_wait(Duration::ZERO);
    let (first, second) = (layer.layer(ok_service()), layer.clone().layer(ok_service()));
    first.clone().oneshot(Request::new(())).await.unwrap();
    for service in [first, second] {
        let error = service.oneshot(Request::new(())).await.unwrap_err();
        assert!(error.is_rate_limited());
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn call_waiting_for_a_permit_does_not_reserve_the_inner_service() {
    // The inner service has one concurrency slot. Two requests wait for permits in the rate-limit layer, outside the
    // inner service.
    let layer = RateLimitLayer::new(bucket(11, 10, 1));
    let inner = tower::limit::ConcurrencyLimitLayer::new(1).layer(ok_service());
    let limited = layer.layer(inner.clone());
    limited.clone().oneshot(Request::new(())).await.unwrap();
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(limited.clone().oneshot(Request::new(())))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut other = inner;
    assert!(
        task::spawn(other.ready()).poll().is_ready(),
        "the concurrency slot is free while the requests wait for permits"
    );
    drop(other);
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn call_is_in_flight_from_its_first_poll_until_it_ends_or_is_dropped() {
    let bucket = bucket(15, 10, 5);
    let counts = || (bucket.snapshot().granted, bucket.snapshot().in_flight);
    let mut service = RateLimitLayer::new(bucket.clone()).layer(ok_service());
    drop(service.call(Request::new(())));
    let unpolled = service.call(Request::new(()));
    assert_eq!(counts(), (0, 0));
    unpolled.await.unwrap();
    assert_eq!(counts(), (1, 0));

    // The next call is granted a permit, and is dropped before the inner service is ready.
    let semaphore = Arc::new(Semaphore::new(0));
    let never_ready = ConcurrencyLimit::with_semaphore(ok_service(), semaphore);
    let mut granted =
        task::spawn(RateLimitLayer::new(bucket.clone()).layer(never_ready).call(Request::new(())));
    assert_pending!(granted.poll());
    assert_eq!(counts(), (2, 1));
    drop(granted);
    assert_eq!(counts(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn debug_output_shows_the_name_and_state_of_each_limiter_type() {
    let bucket = LocalLimiter::token_bucket(one_per_second());
    bucket.try_acquire().unwrap();
    let window = LocalLimiter::sliding_window(one_per_second());
    let keyed = Keyed::with_max_keys(20, |_| 0, |_: &u32| LocalLimiter::unlimited());
    let layer = RateLimitLayer::new(bucket.clone());
    let mut waiting = task::spawn(Box::pin(layer.layer(ReadyAfter::new(millis(1))).call(Request::new(()))));
    let acquiring = format!("{:?}", *waiting);
    assert_pending!(waiting.poll());
    advance(Duration::from_secs(2)).await;
    assert_pending!(waiting.poll());
    let readying = format!("{:?}", *waiting);
    advance(millis(2)).await;
    assert!(assert_ready!(waiting.poll()).is_ok());
    let completed = format!("{:?}", *waiting);
    let mut refusing = layer.clone().with_max_wait(Duration::ZERO).layer(ok_service());
    let mut refused = task::spawn(Box::pin(refusing.call(Request::new(()))));
    assert!(assert_ready!(refused.poll()).is_err());
    let refused = format!("{:?}", *refused);
    for (debug, start) in [
        (format!("{bucket:?}"), "LocalLimiter { snapshot: Snapshot { available: "),
        (format!("{:?}", window.acquire_with(&PermitRequest::new())), "Acquire { .."),
        (format!("{:?}", AnyLimiter::new(bucket.clone())), "AnyLimiter { inner: LocalLimiter {"),
        (format!("{keyed:?}"), "Keyed { room: 32"),
        (format!("{layer:?}"), "RateLimitLayer {"),
        (format!("{:?}", layer.layer(NonZeroU32::MIN)), "RateLimit {"),
        (acquiring, r#"rate_limit::ResponseFuture { state: "acquiring""#),
        (readying, r#"rate_limit::ResponseFuture { state: "readying""#),
        (completed, r#"rate_limit::ResponseFuture { state: "completed""#),
        (refused, r#"rate_limit::ResponseFuture { state: "completed""#),
    ] {
        assert!(debug.starts_with(start), "{debug}");
    }
}

#[tokio::test(start_paused = true)]
async fn queued_request_is_sent_unchanged() {
    for (length, mark) in [(10, None), (10, Some(7_u8)), (2_000, None)] {
        let server = ScriptedService::new([Status(200)]);
        let ready = Arc::new(Semaphore::new(1));
        let inner = ConcurrencyLimit::with_semaphore(server.clone(), Arc::clone(&ready));
        let service = RateLimitLayer::new(bucket(2, 10, 1)).layer(inner);
        let mut request = get("https://api.example.com/v1?q=1");
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        let mut secret = HeaderValue::from_bytes(&vec![b's'; length]).unwrap();
        secret.set_sensitive(true);
        request.headers_mut().append("x-many", HeaderValue::from_static("1"));
        // `HeaderName::from_bytes` rejects this name.
        let quoted = HeaderName::from_lowercase(b"x\"y").unwrap();
        request.headers_mut().append(quoted, HeaderValue::from_static("3"));
        request.headers_mut().append("x-secret", secret);
        request.headers_mut().append("x-many", HeaderValue::from_static("2"));
        if let Some(mark) = mark {
            request.extensions_mut().insert(mark);
        }
        let start = Instant::now();
        service.clone().oneshot(request.clone()).await.unwrap();
        // The second request waits for a permit, then for the inner service, and then for another permit.
        let busy = ready.acquire_owned().await.unwrap();
        tokio::spawn(async move {
            sleep(millis(12_000)).await;
            drop(busy);
        });
        service.oneshot(request.clone()).await.unwrap();
        assert!(start.elapsed() >= millis(20_000), "the second request waits for two permits");
        let sent = &server.seen()[1].head;
        assert_eq!((&sent.method, &sent.uri, sent.version), (&Method::POST, request.uri(), Version::HTTP_2));
        assert!(sent.headers.iter().eq(request.headers()), "{length}");
        assert!(sent.headers["x-secret"].is_sensitive() && !sent.headers["x-many"].is_sensitive());
        assert_eq!(
            (sent.extensions.get::<u8>().copied(), sent.extensions.len()),
            (mark, mark.into_iter().count())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn queued_request_keeps_the_context_of_its_call() {
    let server = ScriptedService::new([Status(200)]);
    let limited = RateLimitLayer::new(bucket(2, 10, 1)).layer(server.clone());
    let service = RequestIdLayer::new().layer(limited);
    for _ in 0..2 {
        service.clone().oneshot(get("https://api.example.com/v1")).await.unwrap();
    }
    let sent = &server.seen()[1].head;
    let report = sent.extensions.get::<CallContext>().unwrap().report();
    assert_eq!(report.waited(), Duration::from_secs(10));
    assert_eq!(report.request_id().as_ref(), sent.headers.get("x-request-id"));
}
