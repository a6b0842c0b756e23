//! Tests that no window exceeds its quota when several threads acquire permits in real time. The tests measure at the
//! limiter and at a server.
//!
//! The tests of this file run one after another, because concurrent tests would compete for the processor.

#[path = "../../examples/support/mod.rs"]
mod example_support;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use example_support::{MockConfig, MockServer};
use tokio::{task::JoinSet, time::Instant};
use tower_outbound::{
    ApiKey, Quota,
    error::{Reason, Refusal},
    limit::LocalLimiter,
    stack::StackBuilder,
    test_util::{Arrival, Arrivals},
};

static SERIAL: Mutex<()> = Mutex::new(());

/// Blocks until no other test of this file runs.
fn run_alone() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

const THREADS: usize = 4;

/// The number of permits that the threads acquire: a million, or a quarter of a million in a build with debug
/// assertions.
const GRANTS: usize = 1_000_000 / SLOWDOWN;
const SLOWDOWN: usize = if cfg!(debug_assertions) { 4 } else { 1 };

/// Acquires `count` permits in all, in busy loops on four threads. Returns the times of the grants and the number of
/// refusals.
fn acquire_from_threads(
    count: usize,
    try_acquire: impl Fn() -> Result<(), Refusal> + Sync,
) -> (Arrivals, usize) {
    let (left, refusals) = (AtomicUsize::new(count), AtomicUsize::new(0));
    let grants = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut grants = Vec::with_capacity(count);
                    while left
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                        .is_ok()
                    {
                        grants.push(acquire_one(&try_acquire, &refusals));
                        // A short pause lets the limiter refill to a full burst.
                        if grants.len() % (count / 16) == 0 {
                            thread::sleep(Duration::from_millis(20));
                        }
                    }
                    grants
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    (grants, refusals.into_inner())
}

/// Retries until the limiter grants a permit. The returned arrival holds the times right before and right after the
/// grant.
fn acquire_one(try_acquire: impl Fn() -> Result<(), Refusal>, refusals: &AtomicUsize) -> Arrival {
    loop {
        let before = Instant::now();
        let result = try_acquire();
        let after = Instant::now();
        match result {
            Ok(()) => return Arrival::between(before, after),
            Err(refusal) => {
                assert_eq!(refusal.reason(), Reason::MaxWait);
                refusals.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        }
    }
}

/// Asserts that no window exceeds a quota. Also asserts a high load: the limiter refused some calls, and the fullest
/// window held more than 20 % of one quota.
fn assert_quotas_hold(
    name: &str,
    quotas: &[Quota],
    try_acquire: impl Fn() -> Result<(), Refusal> + Sync,
    count: usize,
) {
    let (grants, refusals) = acquire_from_threads(count, try_acquire);
    let times = grants.times();
    let took = *times.iter().max().unwrap() - *times.iter().min().unwrap();
    assert_eq!(times.len(), count);
    let mut fullest = Vec::new();
    for quota in quotas {
        let most = grants.most_in(quota.window());
        println!(
            "{name}: {quota}: {count} grants in {took:?}, {refusals} refusals, {most} grants in the fullest window"
        );
        assert!(most <= u64::from(quota.limit()), "{name}: {quota}: {most} grants in one window");
        fullest.push(most as f64 / f64::from(quota.limit()));
    }
    assert!(refusals > 0, "{name}: the limiter never refused a permit");
    // The bound of 20 % is low, because threads on a busy machine acquire fewer permits.
    assert!(
        fullest.iter().any(|full| *full > 0.2),
        "{name}: no window held more than 20 % of its quota: {fullest:?}"
    );
}

fn quota(limit: usize, millis: u64, burst: usize) -> Quota {
    let quota = Quota::new((limit / SLOWDOWN) as u32, Duration::from_millis(millis)).unwrap();
    quota.with_burst((burst / SLOWDOWN) as u32).unwrap().without_margin()
}

#[test]
fn token_bucket_stays_within_its_quota_with_four_threads() {
    let _alone = run_alone();
    let quota = quota(60_000, 100, 6_000);
    let bucket = LocalLimiter::token_bucket(quota);
    assert_quotas_hold("token bucket", &[quota], || bucket.try_acquire().map(drop), GRANTS);
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.granted, snapshot.queued), (GRANTS as u64, 0));
}

#[test]
fn sliding_window_stays_within_its_quota_with_four_threads() {
    let _alone = run_alone();
    let quota = quota(60_000, 100, 6_000);
    let window = LocalLimiter::sliding_window(quota);
    assert_quotas_hold("sliding window", &[quota], || window.try_acquire().map(drop), GRANTS / 4);
    assert_eq!(window.snapshot().granted, GRANTS as u64 / 4);
}

#[test]
fn both_limiters_stay_within_two_quotas_with_four_threads() {
    let _alone = run_alone();
    // The first quota has the smaller burst, and the second quota has the lower rate.
    let quotas = [quota(15_000, 20, 1_000), quota(60_000, 100, 6_000)];
    let bucket = LocalLimiter::token_bucket(quotas);
    assert_quotas_hold("two token buckets", &quotas, || bucket.try_acquire().map(drop), GRANTS / 4);
    let window = LocalLimiter::sliding_window(quotas);
    assert_quotas_hold("two sliding windows", &quotas, || window.try_acquire().map(drop), GRANTS / 4);
}

#[test]
fn window_count_detects_a_single_extra_grant() {
    let start = Instant::now();
    let millis = |millis| start + Duration::from_millis(millis);
    let grant = |before, after| Arrival::between(millis(before), millis(after));
    // The limiter grants a permit every 10 ms, and each grant time is uncertain by 1 ms. A window of 101 ms contains 11
    // grants, and a window of 100 ms contains 10.
    let mut grants: Vec<_> = (0..50).map(|number| grant(number * 10, number * 10 + 1)).collect();
    let most = |grants: &[Arrival], window| {
        grants.iter().copied().collect::<Arrivals>().most_in(Duration::from_millis(window))
    };
    assert_eq!((most(&grants, 100), most(&grants, 101)), (10, 11));
    // A window contains a grant only if both the earliest and the latest time of the grant lie in the window.
    grants.push(grant(150, 260));
    assert_eq!((most(&grants, 101), most(&grants, 110)), (11, 12));
    grants.push(grant(155, 156));
    assert_eq!((most(&grants, 100), most(&grants, 101)), (11, 12));

    // A naive bucket with a burst of 100 permits and a refill of 100 permits per second grants more than 100 permits in
    // one second.
    let naive = Quota::per_second(200).unwrap().with_burst(100).unwrap().without_margin();
    let _alone = run_alone();
    let bucket = LocalLimiter::token_bucket(naive);
    let (grants, _) = acquire_from_threads(160, || bucket.try_acquire().map(drop));
    assert!(
        grants.most_in(Duration::from_secs(1)) > 100,
        "the naive bucket granted at most 100 permits per second"
    );
}

#[test]
fn server_counts_no_quota_violation_if_four_clients_share_a_limiter() {
    let _alone = run_alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(load_server_from_four_clients());
}

/// Sends requests from 64 tasks through four clients that share a limiter, for the length of two windows. The quota has
/// the presets' margin of 1 s.
async fn load_server_from_four_clients() {
    const TASKS: usize = 64;
    const WINDOW: Duration = Duration::from_secs(3);
    let quota = Quota::new(100, WINDOW).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let server =
        MockServer::start(MockConfig { quota: Some((100, WINDOW)), ..MockConfig::new("hammer", "k3y") })
            .await
            .unwrap();
    let preset = StackBuilder::new(server.base_url())
        .unwrap()
        .with_api_key(ApiKey::new("k3y").unwrap())
        .with_quota(quota);
    // Each client has its own connections. All clients share one limiter.
    let clients: Vec<_> = (0..4).map(|_| preset.clone().client().unwrap()).collect();

    let start = Instant::now();
    let duration = WINDOW * 2;
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let client = clients[number % clients.len()].clone();
        tasks.spawn(async move {
            let mut statuses = BTreeMap::new();
            loop {
                let Ok(response) = tokio::time::timeout_at(start + duration, client.get("/v1")).await else {
                    return statuses;
                };
                *statuses.entry(response.unwrap().status().as_u16()).or_insert(0) += 1;
            }
        });
    }
    let mut statuses = BTreeMap::new();
    let allowed_in =
        |time: Duration| quota.burst() as u128 + (time.as_secs_f64() * quota.sustained()) as u128;
    while let Some(task) = tasks.join_next().await {
        for (status, count) in task.unwrap() {
            *statuses.entry(status).or_insert(0) += count;
        }
    }

    let log = server.request_log();
    // The timer that ends the load may fire late. The upper bound therefore uses the measured time.
    let (allowed, upper_bound) = (allowed_in(duration), allowed_in(start.elapsed()));
    println!(
        "{} of {allowed} possible requests arrived over {} connections, at most {} in one window, statuses {statuses:?}",
        log.requests.len(),
        log.connections,
        log.most_in(WINDOW),
    );
    assert_eq!(log.violations(), 0);
    assert!(log.most_in(WINDOW) <= 100);
    assert!(log.connections >= 4, "{}", log.connections);
    // On an idle machine, the clients send all allowed requests. On a busy machine, they send at least half of the
    // allowed requests.
    assert!(log.requests.len() as u128 * 2 >= allowed, "{} of {allowed}", log.requests.len());
    assert!(log.requests.len() as u128 <= upper_bound, "{} of {upper_bound}", log.requests.len());
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200]);
}
