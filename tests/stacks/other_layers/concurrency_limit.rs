//! Tests tower's `ConcurrencyLimit`, and a service with its own slots. A slot is a permit of the concurrency limit.

use std::{io::ErrorKind::ConnectionReset, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, task};
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer},
};
use tower_outbound::{
    Quota,
    limit::{LocalLimiter, RateLimitLayer},
    retry::RetryLayer,
};

use super::{
    URI, bucket, fullest_window, rates,
    slots::Slots,
    support::{Scripted::*, ScriptedService, get, secs},
};

/// Four requests hold all slots for a minute. Eight more requests have permits of the limiter and wait for slots. These
/// eight requests must not leave together when the slots become free.
#[tokio::test(start_paused = true)]
async fn quota_is_kept_if_requests_with_permits_wait_for_a_slot() {
    let client = ScriptedService::new([
        Delayed(60_000, 200),
        Delayed(60_000, 200),
        Delayed(60_000, 200),
        Delayed(60_000, 200),
        Status(200),
    ]);
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(bucket(4)))
        .layer(ConcurrencyLimitLayer::new(4))
        .service(client.clone());
    let calls: Vec<_> = (0..12).map(|_| tokio::spawn(service.clone().oneshot(get(URI)))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(
        (client.calls(), fullest_window(&client) <= 4),
        (12, true),
        "{} requests in 10 s",
        fullest_window(&client)
    );
}

fn slow() -> LocalLimiter {
    LocalLimiter::token_bucket(Quota::per_minute(2).unwrap().with_burst(1).unwrap())
}

#[tokio::test(start_paused = true)]
async fn waiting_call_holds_no_slot_of_an_inner_concurrency_limit() {
    let slots = Slots::new(1, [Status(200)]);
    let service = RateLimitLayer::new(slow()).layer(slots.clone());
    service.clone().oneshot(get(URI)).await.unwrap();
    let mut queued = task::spawn(service.oneshot(get(URI)));
    assert_pending!(queued.poll());
    assert_eq!(slots.free(), 1, "while queued for the limiter");

    let slots = Slots::new(1, [RetryAfter(503, "30"), Status(200)]);
    let mut in_backoff = task::spawn(RetryLayer::new().layer(slots.clone()).oneshot(get(URI)));
    assert_pending!(in_backoff.poll());
    while in_backoff.is_woken() {
        assert_pending!(in_backoff.poll());
    }
    assert_eq!((slots.client.calls(), slots.free()), (1, 1), "during the backoff");
    in_backoff.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_call_holds_a_slot_of_an_outer_concurrency_limit() {
    for script in [[RetryAfter(503, "30"), Status(200)], [Status(200), Status(200)]] {
        let slots = Arc::new(Semaphore::new(1));
        let client = ScriptedService::new(script);
        let service = ServiceBuilder::new()
            .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&slots)))
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(slow()))
            .service(client.clone());
        if matches!(script[0], Status(200)) {
            service.clone().oneshot(get(URI)).await.unwrap();
        }
        let mut call = task::spawn(service.oneshot(get(URI)));
        assert_pending!(call.poll());
        assert_eq!((client.calls(), slots.available_permits()), (1, 0));
        call.await.unwrap();
        assert_eq!(slots.available_permits(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrency_limit_inside_retry_releases_its_slot_during_the_backoff() {
    let slots = Arc::new(Semaphore::new(1));
    let client = ScriptedService::new([RetryAfter(503, "30"), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&slots)))
        .layer(RateLimitLayer::new(slow()))
        .service(client.clone());
    let mut in_backoff = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(in_backoff.poll());
    while in_backoff.is_woken() {
        assert_pending!(in_backoff.poll());
    }
    assert_eq!((client.calls(), slots.available_permits()), (1, 1), "during the backoff");
    let mut queued = task::spawn(service.oneshot(get(URI)));
    assert_pending!(queued.poll());
    assert_eq!((client.calls(), slots.available_permits()), (1, 0), "while queued for the limiter");
}

#[tokio::test(start_paused = true)]
async fn every_slot_is_returned_regardless_of_how_a_call_ends() {
    let ends = [
        ("success", Status(200), 2),
        ("a failed response", Status(503), 2),
        ("an error", Io(ConnectionReset), 2),
        ("a refusal of the limiter", Status(200), 2),
        ("timeouts", NoResponse, 2),
        ("no free slot", Status(200), 0),
    ];
    for (name, response, slot_count) in ends {
        for drop_after in [Duration::ZERO, secs(1), secs(5), secs(15), secs(3_600)] {
            let slots = Slots::new(slot_count, [response]);
            let preset = rates().with_quota(Quota::per_minute(6).unwrap().with_burst(1).unwrap());
            let preset = match name {
                "a refusal of the limiter" => preset.with_limit(|limit| limit.with_max_wait(Duration::ZERO)),
                _ => preset,
            };
            let service = preset.layer().unwrap().layer(slots.clone());
            let calls = (0..3).map(|_| tokio::time::timeout(drop_after, service.clone().oneshot(get(URI))));
            let results = futures_util::future::join_all(calls).await;
            assert_eq!(slots.free(), slot_count, "{name}, dropped after {drop_after:?}");
            // The total timeout ends every call within an hour.
            assert!(drop_after < secs(3_600) || results.iter().all(Result::is_ok), "{name}");
            let errors = results.iter().flatten().filter_map(|result| result.as_ref().err());
            let refused = errors.filter(|error| error.is_rate_limited()).count();
            assert!(name != "a refusal of the limiter" || refused == 2, "{name}: {refused} refused");
        }
    }
}
