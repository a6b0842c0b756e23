//! Tests how the store of a Redis limiter grants permits: windows, fairness, costs and order.

use std::sync::{Arc, Mutex};

use tower_outbound::limit::Priority::{High, Low, Normal};

use super::*;

#[tokio::test]
async fn redis_limiter_grants_in_fifo_order_and_refuses_waits_that_are_too_long() {
    let server = server();
    // A server that has just started grants no permits for one window. The test queues its requests in that window.
    let quota = quota(20, millis(2_000)).with_burst(2).unwrap();
    let limiter = bucket(&server.url(), "key", [quota]).unwrap();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut all = JoinSet::new();
    for number in 0..10 {
        let (limiter, order) = (limiter.clone(), order.clone());
        all.spawn(async move {
            take(&limiter, request(1, None)).await.unwrap();
            order.lock().unwrap().push(number);
        });
        tokio::task::yield_now().await;
    }
    wait_until("the limiter has received a reply with a predicted wait", || limiter.store() == Store::Shared)
        .await;
    let start = Instant::now();
    let refusal = take(&limiter, request(1, Some(millis(60)))).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::MaxWait);
    // The wait in a refusal is measured from the refusal, not from the arrival of the request.
    assert!(refusal.wait().unwrap() + start.elapsed() > millis(60), "{refusal}");
    let bounded = request(1, None).with_deadline(Instant::now() + millis(60));
    assert_eq!(take(&limiter, bounded).await.unwrap_err().reason(), Reason::Deadline);

    all.join_all().await;
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    assert_eq!(limiter.snapshot().queued, 0);
}

#[tokio::test]
async fn permit_of_a_dropped_waiter_goes_to_the_next_waiter() {
    let server = server();
    let limiter = bucket(&server.url(), "key", [quota(10, millis(500)).with_burst(1).unwrap()]);
    let limiter = limiter.unwrap();
    let mut first = tokio_test::task::spawn(limiter.acquire_with(&request(1, None)));
    tokio_test::assert_pending!(first.poll());
    let next = tokio::spawn({
        let limiter = limiter.clone();
        async move { take(&limiter, request(1, None)).await }
    });
    tokio::task::yield_now().await;
    drop(first);
    next.await.unwrap().unwrap();
    assert_eq!(limiter.snapshot().awaiting_response, 0);
}

/// During a deployment, old and new processes may have different quotas.
#[tokio::test]
async fn processes_with_different_quotas_stay_within_the_larger_quota() {
    let server = shared_server();
    let run = async |make: Make| {
        let make = |limit| make(&server.url(), "deployment", vec![with_margin(limit, millis(500))]).unwrap();
        let limiters = [50, 100].map(make);
        let (arrivals, shares) = take_continuously(&limiters, 4, millis(4_000)).await;
        arrivals.assert_within(quota(100, millis(500)));
        assert!(shares.iter().all(|share| *share > 20), "{shares:?}");
    };
    tokio::join!(run(bucket), run(window));
}

#[tokio::test]
async fn redis_limiter_serves_higher_priorities_of_its_process_first() {
    let server = shared_server();
    let run = async |make: Make| {
        let quota = quota(5, millis(1_000)).with_burst(1).unwrap();
        let limiter = make(&server.url(), "priorities", vec![quota]).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        // On the test's single thread, every call joins the queue before the first reply of the store is read.
        let mut calls = JoinSet::new();
        for priority in [Low, Normal, High, Low, Normal, High] {
            let acquire = limiter.acquire_with(&request(1, None).with_priority(priority));
            let order = Arc::clone(&order);
            calls.spawn(async move {
                acquire.await.unwrap();
                order.lock().unwrap().push(priority);
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [High, High, Normal, Normal, Low, Low]);
    };
    tokio::join!(run(bucket), run(window));
}

/// A bucket grants its burst, and then permits at the rate of the server, also beside a window.
#[tokio::test]
async fn processes_share_the_bucket_of_a_service() {
    let server = shared_server();
    let shared = Quota::bucket(20, 50, millis(1_000)).unwrap().with_margin(millis(40)).unwrap();
    let length = millis(4_000);
    let run = async |make: Make, name: &str, beside: Option<u32>| {
        let quotas: Vec<_> =
            beside.map(|limit| quota(limit, millis(1_000))).into_iter().chain([shared]).collect();
        // The hold and the margin take twelve permits of the burst.
        let make = || make(&server.url(), name, quotas.clone()).unwrap().with_lease(1, millis(200)).unwrap();
        let limiters = [make(), make()];
        let refusal = take(&limiters[0], request(9, None)).await.unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooCostly { largest: 8 });
        let (arrivals, _) = take_continuously(&limiters, 4, length).await;
        arrivals.assert_within(shared);
        let granted = arrivals.times().len();
        assert!((75..=200 + 20).contains(&granted), "{granted}");
    };
    tokio::join!(run(bucket, "alone", None), run(window, "alone", None), run(window, "beside", Some(100)));
}
