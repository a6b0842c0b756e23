//! Tests tower's `ConcurrencyLimit` around and inside the layers of this crate. A slot is a permit of that limit.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, task};
use tower::{ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer};
use tower_outbound::{
    Quota,
    limit::{LocalLimiter, RateLimitLayer},
    retry::RetryLayer,
};

use super::{
    URI,
    support::{Scripted::*, ScriptedService, get},
};

/// Returns a limiter that grants a permit every minute.
fn slow() -> LocalLimiter {
    LocalLimiter::token_bucket(Quota::per_minute(2).unwrap().with_burst(1).unwrap())
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
