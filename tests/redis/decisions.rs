//! Tests how the store of a Redis limiter grants permits: windows, fairness, costs and order.

use std::sync::{Arc, Mutex};

use tower_outbound::limit::Priority::{High, Low, Normal};

use super::*;

/// Returns the number of permits that tasks take in the time `length` if they request permits without a break. No
/// permits are available at the start.
fn expected(quota: Quota, hold: Duration, window: bool, length: Duration) -> f64 {
    let longer = (quota.window() + quota.margin() + hold).as_secs_f64();
    let refilled = if window { quota.limit() } else { quota.limit() - quota.burst() };
    length.as_secs_f64() / longer * f64::from(refilled)
}

#[tokio::test]
async fn three_processes_share_one_quota() {
    let server = server();
    let shared = with_margin(100, millis(500));
    let length = millis(4_000);
    for sliding in [false, true] {
        let make = || {
            let make = if sliding { window } else { bucket };
            make(&server.url(), "key", [shared]).unwrap()
        };
        let limiters = [make(), make(), make()];
        let (arrivals, shares) = take_continuously(&limiters, 8, length).await;
        arrivals.assert_within(shared);
        let (total, expected) =
            (arrivals.times().len() as f64, expected(shared, quarter_of_window(&[shared]), sliding, length));
        // An idle machine uses nearly all of the quota. On a busy machine, permits expire unused.
        assert!(total > expected / 2.0, "{total} of {expected}, window: {sliding}");
        let fair = total as usize / 3;
        assert!(shares.iter().all(|share| *share > fair / 3), "{shares:?}");
    }
}

#[tokio::test]
async fn redis_limiter_grants_a_full_burst_after_an_idle_time() {
    let server = server();
    let make = || bucket(&server.url(), "key", [quota(100, millis(1_000)).with_burst(10).unwrap()]);
    let (limiter, other) = (make().unwrap(), make().unwrap());
    take(&limiter, request(1, None)).await.unwrap();
    tokio::time::sleep(millis(1_200)).await;
    let start = Instant::now();
    for _ in 0..5 {
        take(&limiter, request(1, Some(Duration::ZERO))).await.unwrap();
        take(&other, request(1, Some(Duration::ZERO))).await.unwrap();
    }
    for _ in 0..10 {
        take(&limiter, request(1, None)).await.unwrap();
    }
    // The store grants the next ten permits at least 13 ms apart.
    assert!(start.elapsed() >= millis(130), "{:?}", start.elapsed());
}

#[tokio::test]
async fn redis_limiter_stays_within_each_of_its_quotas() {
    let server = server();
    let quotas = [with_margin(20, millis(400)), with_margin(40, millis(2_000))];
    for make in [bucket, window] {
        let limiter = make(&server.url(), "key", quotas.to_vec()).unwrap();
        let (arrivals, _) = take_continuously(&[limiter], 4, millis(5_000)).await;
        quotas.iter().for_each(|quota| arrivals.assert_within(*quota));
        assert!(arrivals.times().len() >= 40, "{}", arrivals.times().len());
    }
}

#[tokio::test]
async fn redis_limiter_grants_all_permits_of_a_request_together() {
    let server = server();
    for (make, largest) in [(bucket as fn(&str, &str, Vec<Quota>) -> _, 10), (window, 50)] {
        let quota = with_margin(50, millis(500)).with_burst(10).unwrap();
        let limiter = make(&server.url(), "key", vec![quota]).unwrap();
        let refusal = take(&limiter, request(largest + 1, None)).await.unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooCostly { largest });

        let mut arrivals = Arrivals::new();
        for cost in [7, 1, 10, 2, 9, 5, 10, 3, 8, 10] {
            arrivals.extend([take(&limiter, request(cost, None)).await.unwrap()]);
        }
        arrivals.assert_within(quota);
    }
}

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

/// The duration of a query does not count toward the maximum wait.
#[tokio::test]
async fn redis_limiter_queries_the_store_even_if_max_wait_is_zero() {
    let server = server();
    let limiter = bucket(&server.url(), "key", [quota(100, millis(1_000))]).unwrap();
    take(&limiter, request(1, None)).await.unwrap();
    tokio::time::sleep(millis(200)).await;
    take(&limiter, request(1, Some(Duration::ZERO))).await.unwrap();
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
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[tokio::test]
async fn redis_limiter_with_a_lease_grants_many_requests_after_one_query() {
    let server = server();
    let quota = quota(10_000, millis(1_000));
    let plain = bucket(&server.url(), "plain", [quota]).unwrap();
    let leased = bucket(&server.url(), "leased", [quota]).unwrap();
    let leased = leased.with_lease(100, quota.window()).unwrap();
    let mut query_counts = Vec::new();
    for limiter in [plain, leased] {
        take(&limiter, request(1, None)).await.unwrap();
        tokio::time::sleep(millis(300)).await;
        let before = count_queries(&server).await;
        for _ in 0..500 {
            take(&limiter, request(1, None)).await.unwrap();
        }
        query_counts.push(count_queries(&server).await - before);
    }
    // The first leases have 2, 4, 8 … 64 permits, and each later lease has 100 permits. The test needs eleven queries,
    // or more if leases expire unused.
    assert!(query_counts[0] >= 500 && query_counts[1] < 50, "{query_counts:?}");
}

/// Returns the number of scripts that the server has run.
async fn count_queries(server: &RedisServer) -> u64 {
    let mut connection = connect(server).await;
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let lines = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    lines.filter_map(calls).sum()
}

/// During a deployment, old and new processes may have different quotas.
#[tokio::test]
async fn processes_with_different_quotas_stay_within_the_larger_quota() {
    let server = server();
    for make in [bucket, window] {
        let limiters =
            [50, 100].map(|limit| make(&server.url(), "key", vec![with_margin(limit, millis(500))]).unwrap());
        let (arrivals, shares) = take_continuously(&limiters, 4, millis(4_000)).await;
        arrivals.assert_within(quota(100, millis(500)));
        assert!(shares.iter().all(|share| *share > 20), "{shares:?}");
    }
}

/// The limiter refuses no waiter before a query, because only the store knows how many permits are available.
#[tokio::test]
async fn redis_limiter_grants_available_burst_to_waiters_with_short_max_wait() {
    let server = server();
    let quota = quota(20, millis(1_000)).with_burst(10).unwrap();
    let limiter = bucket(&server.url(), "key", [quota]).unwrap();
    for _ in 0..2 {
        take(&limiter, request(1, None)).await.unwrap();
        tokio::time::sleep(millis(2_200)).await;
        let all = (0..9).map(|_| {
            let limiter = limiter.clone();
            async move { take(&limiter, request(1, Some(millis(100)))).await }
        });
        let refused = all.collect::<JoinSet<_>>().join_all().await.into_iter().find_map(Result::err);
        assert_eq!(refused, None);
    }
}

/// The predicted wait for ten permits does not apply to a request for a single permit.
#[tokio::test]
async fn refusal_of_a_costly_request_does_not_block_cheap_requests() {
    let server = server();
    let limiter = window(&server.url(), "key", [quota(10, millis(3_000))]).unwrap();
    take(&limiter, request(1, None)).await.unwrap();
    assert_eq!(take(&limiter, request(10, Some(millis(50)))).await.unwrap_err().reason(), Reason::MaxWait);
    take(&limiter, request(1, Some(millis(300)))).await.unwrap();
    let waiting = tokio::time::timeout(millis(100), limiter.acquire_with(&request(10, None)));
    assert!(waiting.await.is_err());
    take(&limiter, request(1, Some(millis(300)))).await.unwrap();
}

#[tokio::test]
async fn redis_limiter_serves_higher_priorities_of_its_process_first() {
    let server = server();
    for make in [bucket, window] {
        let quota = quota(5, millis(1_000)).with_burst(1).unwrap();
        let limiter = make(&server.url(), "key", vec![quota]).unwrap();
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
    }
}

/// The permits that the store grants expire before the next one is available, so the limiter must not save them for a
/// request that costs several.
#[tokio::test]
async fn redis_limiter_serves_a_costly_request_of_a_low_priority_beside_higher_ones() {
    let server = server();
    let quota = quota(5, millis(400)).with_burst(2).unwrap();
    let limiter = bucket(&server.url(), "key", vec![quota]).unwrap();
    let mut calls = JoinSet::new();
    for (priority, cost) in [(Low, 2)].into_iter().chain([(Normal, 1); 14]) {
        calls.spawn(limiter.acquire_with(&request(cost, None).with_priority(priority)));
    }
    let all = async {
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
    };
    // 16 permits take 2 s.
    tokio::time::timeout(millis(10_000), all).await.unwrap();
}

/// A bucket grants its burst, and then permits at the rate of the server, also beside a window.
#[tokio::test]
async fn processes_share_the_bucket_of_a_service() {
    let server = server();
    let shared = Quota::bucket(20, 50, millis(1_000)).unwrap().with_margin(millis(40)).unwrap();
    let length = millis(4_000);
    for (make, beside) in
        [(bucket as fn(&str, &str, Vec<Quota>) -> _, None), (window, None), (window, Some(100))]
    {
        let quotas: Vec<_> =
            beside.map(|limit| quota(limit, millis(1_000))).into_iter().chain([shared]).collect();
        let name = format!("{}", quotas.len());
        // The hold and the margin take twelve permits of the burst.
        let make = || make(&server.url(), &name, quotas.clone()).unwrap().with_lease(1, millis(200)).unwrap();
        let limiters = [make(), make()];
        let refusal = take(&limiters[0], request(9, None)).await.unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooCostly { largest: 8 });
        let (arrivals, _) = take_continuously(&limiters, 4, length).await;
        arrivals.assert_within(shared);
        let granted = arrivals.times().len();
        assert!((75..=200 + 20).contains(&granted), "{granted}");
    }
}
