//! Tests tower's `Balance`, with its power-of-two-choices algorithm.

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use http::Request;
use tower::{
    BoxError, Layer, Service, ServiceExt,
    balance::p2c::Balance,
    buffer::{Buffer, BufferLayer},
    discover::ServiceList,
    limit::ConcurrencyLimitLayer,
    load::{CompleteOnResponse, Constant, Load, PendingRequests},
    util::rng::HasherRng,
};
use tower_outbound::{body::ReplayBody, limit::RateLimitLayer};

use super::{
    URI, bucket, fullest_window, rates,
    support::{Content, Limited, Scripted::*, ScriptedService, get, secs},
};

/// A stack needs a `Clone` service. `Balance` is not `Clone`, but a `Buffer` around a `Balance` is.
#[tokio::test(start_paused = true)]
async fn stack_works_over_a_balance_service_in_a_buffer() {
    let clients = [ScriptedService::new([Status(200)]), ScriptedService::new([Status(200)])];
    let endpoints = ServiceList::new::<Request<ReplayBody<Content>>>(
        clients.clone().map(|client| Constant::new(client, 1)),
    );
    let service = rates().layer().unwrap().layer(Buffer::new(Balance::new(endpoints), 8));
    for _ in 0..8 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    assert_eq!(clients.iter().map(ScriptedService::calls).sum::<usize>(), 8);
}

/// All stacks that one `StackLayer` creates share the layer's limiter.
#[tokio::test(start_paused = true)]
async fn all_stacks_that_one_stack_layer_creates_share_the_quota() {
    let clients = [ScriptedService::new([Status(200)]), ScriptedService::new([Status(200)])];
    let layer = rates().layer().unwrap();
    let endpoints = ServiceList::new::<Request<Content>>(
        clients.clone().map(|client| Constant::new(layer.layer(client), 1)),
    );
    let mut service = Balance::new(endpoints);
    let start = tokio::time::Instant::now();
    for _ in 0..11 {
        tower::Service::call(service.ready().await.unwrap(), get(URI)).await.unwrap();
    }
    // The preset's quota has a burst of 10, and refills 100 permits within 61 s, one every 610 ms.
    let eleventh = start.elapsed().as_millis();
    assert!((609..622).contains(&eleventh), "{eleventh}");
    assert_eq!(clients.iter().map(ScriptedService::calls).sum::<usize>(), 11);
}

/// Makes 20 calls to two endpoints, one of which never responds to its first call. Returns the number of responses.
async fn count_responses<S>(endpoints: [S; 2]) -> usize
where
    S: Service<Request<Content>, Error: Into<BoxError>, Future: Send + 'static> + Load + 'static,
    S::Metric: std::fmt::Debug,
    S::Response: Send,
    S::Error: Send,
{
    let choices = HasherRng::with_hasher(BuildHasherDefault::<DefaultHasher>::default());
    let mut service = Balance::from_rng(ServiceList::new(endpoints), choices);
    let responses = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let (call, responses) = (service.ready().await.unwrap().call(get(URI)), Arc::clone(&responses));
        tokio::spawn(async move {
            if call.await.is_ok() {
                responses.fetch_add(1, Relaxed);
            }
        });
        tokio::time::sleep(secs(1)).await;
    }
    responses.load(Relaxed)
}

/// `Balance` skips an endpoint that is not ready. A limiter is always ready, so a limiter around an endpoint hides that
/// the endpoint is not ready.
#[tokio::test(start_paused = true)]
async fn balance_over_limiters_detects_load_by_pending_requests_but_not_by_readiness() {
    let clients = || {
        [ScriptedService::new([NoResponse]), ScriptedService::new([Status(200)])]
            .map(|client| Limited::over(client).with_permits(1))
    };
    let limited = || clients().map(|client| RateLimitLayer::new(bucket(100)).layer(client));
    let without_limiter = count_responses(clients().map(|client| Constant::new(client, 1))).await;
    let by_readiness = count_responses(limited().map(|service| Constant::new(service, 1))).await;
    let with_load = |service| PendingRequests::new(service, CompleteOnResponse::default());
    let by_load = count_responses(limited().map(with_load)).await;
    assert!(
        without_limiter >= 19 && by_readiness < 15 && by_load >= 19,
        "responses: {without_limiter} without limiter, {by_readiness} by readiness, {by_load} by pending requests"
    );
}

/// While no endpoint of `Balance` is ready, requests that already have permits wait in the buffer.
#[tokio::test(start_paused = true)]
async fn limiter_around_buffered_balance_keeps_the_quota_only_while_an_endpoint_is_ready() {
    let slow = Delayed(60_000, 200);
    for (first_four, expected) in [([Status(200); 4], 4), ([slow; 4], 8)] {
        // Both endpoints use the same scripted service. Each endpoint allows two concurrent requests.
        let client = ScriptedService::new([&first_four[..], &[Status(200)]].concat());
        let endpoints = [(); 2].map(|()| ConcurrencyLimitLayer::new(2).layer(client.clone()));
        let endpoints = endpoints.map(|endpoint| Constant::new(endpoint, 1));
        let balance = Balance::new(ServiceList::new::<Request<Content>>(endpoints));
        let service = RateLimitLayer::new(bucket(4)).layer(BufferLayer::new(16).layer(balance));
        let calls: Vec<_> = (0..12).map(|_| tokio::spawn(service.clone().oneshot(get(URI)))).collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!((client.calls(), fullest_window(&client).max(4)), (12, expected), "{first_four:?}");
    }
}
