//! tower's `ConcurrencyLimit`, and any service whose readiness is a permit.

use std::{io::ErrorKind::ConnectionReset, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, task};
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer},
};
use tower_outbound::{
    Quota,
    limit::{RateLimitLayer, TokenBucket},
    retry::RetryLayer,
};

use super::{
    URI, bucket,
    permits::Gated,
    rates,
    support::{Scripted::*, ScriptedService, get, secs},
    worst_window,
};

/// Four are out for a minute and eight have their permits of the limiter, but no place: when places come, they do not go
/// together.
#[tokio::test(start_paused = true)]
async fn below_the_window_holds_for_those_who_waited_for_a_place() {
    let probe = ScriptedService::new([
        Delayed(60_000, 200),
        Delayed(60_000, 200),
        Delayed(60_000, 200),
        Delayed(60_000, 200),
        Status(200),
    ]);
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(bucket(4)))
        .layer(ConcurrencyLimitLayer::new(4))
        .service(probe.clone());
    let calls: Vec<_> = (0..12).map(|_| tokio::spawn(service.clone().oneshot(get(URI)))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((probe.calls(), worst_window(&probe) <= 4), (12, true), "{} in 10 s", worst_window(&probe));
}

fn slow() -> TokenBucket {
    TokenBucket::new(Quota::per_minute(2).unwrap().with_burst(1).unwrap())
}

#[tokio::test(start_paused = true)]
async fn below_no_permit_is_held_by_who_waits_or_sleeps() {
    let gated = Gated::new(1, [Status(200)]);
    let service = RateLimitLayer::new(slow()).layer(gated.clone());
    service.clone().oneshot(get(URI)).await.unwrap();
    let mut waiting = task::spawn(service.oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert_eq!(gated.free(), 1, "it waits for the limiter");

    let gated = Gated::new(1, [RetryAfter(503, "30"), Status(200)]);
    let mut sleeping = task::spawn(RetryLayer::new().layer(gated.clone()).oneshot(get(URI)));
    assert_pending!(sleeping.poll());
    while sleeping.is_woken() {
        assert_pending!(sleeping.poll());
    }
    assert_eq!((gated.probe.calls(), gated.free()), (1, 1), "it sleeps its back-off");
    sleeping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn above_the_place_is_held_through_wait_and_back_off() {
    for script in [[RetryAfter(503, "30"), Status(200)], [Status(200), Status(200)]] {
        let places = Arc::new(Semaphore::new(1));
        let probe = ScriptedService::new(script);
        let service = ServiceBuilder::new()
            .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&places)))
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(slow()))
            .service(probe.clone());
        if matches!(script[0], Status(200)) {
            service.clone().oneshot(get(URI)).await.unwrap();
        }
        let mut call = task::spawn(service.oneshot(get(URI)));
        assert_pending!(call.poll());
        assert_eq!((probe.calls(), places.available_permits()), (1, 0));
        call.await.unwrap();
        assert_eq!(places.available_permits(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn between_retry_and_limit_the_place_is_held_through_the_wait_only() {
    let places = Arc::new(Semaphore::new(1));
    let probe = ScriptedService::new([RetryAfter(503, "30"), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&places)))
        .layer(RateLimitLayer::new(slow()))
        .service(probe.clone());
    let mut sleeping = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(sleeping.poll());
    while sleeping.is_woken() {
        assert_pending!(sleeping.poll());
    }
    assert_eq!((probe.calls(), places.available_permits()), (1, 1), "it sleeps its back-off");
    let mut waiting = task::spawn(service.oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert_eq!((probe.calls(), places.available_permits()), (1, 0), "it waits for the limiter");
}

/// However a call ends, and wherever it is dropped.
#[tokio::test(start_paused = true)]
async fn below_no_permit_is_lost() {
    let ends = [
        ("success", Status(200), 2),
        ("a failed answer", Status(503), 2),
        ("an error", Io(ConnectionReset), 2),
        ("refused by the limiter", Status(200), 2),
        ("timeouts", NoResponse, 2),
        ("no permit", Status(200), 0),
    ];
    for (name, answer, permits) in ends {
        // Dropped after so long, in whatever it does then.
        for patience in [Duration::ZERO, secs(1), secs(5), secs(15), secs(3_600)] {
            let gated = Gated::new(permits, [answer]);
            let preset = rates().with_quota(Quota::per_minute(6).unwrap().with_burst(1).unwrap());
            let preset = match name {
                "refused by the limiter" => preset.with_limit(|limit| limit.with_max_wait(Duration::ZERO)),
                _ => preset,
            };
            let service = preset.layer().unwrap().layer(gated.clone());
            let calls = (0..3).map(|_| tokio::time::timeout(patience, service.clone().oneshot(get(URI))));
            let ended = futures_util::future::join_all(calls).await;
            assert_eq!(gated.free(), permits, "{name}, dropped after {patience:?}");
            // The total timeout ends all of them.
            assert!(patience < secs(3_600) || ended.iter().all(Result::is_ok), "{name}");
            let errors = ended.iter().flatten().filter_map(|result| result.as_ref().err());
            let refused = errors.filter(|error| error.is_rate_limited()).count();
            assert!(name != "refused by the limiter" || refused == 2, "{refused} {name}");
        }
    }
}
