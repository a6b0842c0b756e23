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
    buffer::Buffer,
    discover::ServiceList,
    load::{CompleteOnResponse, Constant, Load, PendingRequests},
    util::rng::HasherRng,
};
use tower_outbound::{body::ReplayBody, limit::RateLimitLayer};

use super::{
    URI, bucket, rates,
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
