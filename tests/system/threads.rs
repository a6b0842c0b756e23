//! The window promise under real threads, in real time, and at a real server.
//!
//! One at a time, so that they don't take the processor from one another.

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
    limit::{SlidingWindow, TokenBucket},
    stack::StackBuilder,
    test_util::{Arrival, Arrivals},
};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const THREADS: usize = 4;

/// A million in an optimised build, as it is without debug assertions; else a quarter of it, at a quarter of the
/// rate, in the same time.
const GRANTS: usize = 1_000_000 / SLOWER;
const SLOWER: usize = if cfg!(debug_assertions) { 4 } else { 1 };

/// Takes `count` permits as fast as the threads can; gives when, and how often there was a refusal.
fn hammer(count: usize, take: impl Fn() -> Result<(), Refusal> + Sync) -> (Arrivals, usize) {
    let (left, refused) = (AtomicUsize::new(count), AtomicUsize::new(0));
    let stamps = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut stamps = Vec::with_capacity(count);
                    while left
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                        .is_ok()
                    {
                        stamps.push(one(&take, &refused));
                        // A rest now and then, so that there are full bursts, too.
                        if stamps.len() % (count / 16) == 0 {
                            thread::sleep(Duration::from_millis(20));
                        }
                    }
                    stamps
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    (stamps, refused.into_inner())
}

fn one(take: impl Fn() -> Result<(), Refusal>, refused: &AtomicUsize) -> Arrival {
    loop {
        let before = Instant::now();
        let taken = take();
        let after = Instant::now();
        match taken {
            Ok(()) => return Arrival::between(before, after),
            Err(refusal) => {
                assert_eq!(refusal.reason(), Reason::MaxWait);
                refused.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        }
    }
}

/// Checks the theorem for each quota, and that it was put to the test: there were refusals, and the
/// fullest window held what the quota lets, or half of it on a machine that has other things to do.
fn check(name: &str, quotas: &[Quota], take: impl Fn() -> Result<(), Refusal> + Sync, count: usize) {
    let (stamps, refused) = hammer(count, take);
    let times = stamps.times();
    let took = *times.iter().max().unwrap() - *times.iter().min().unwrap();
    assert_eq!(times.len(), count);
    let mut fullest = Vec::new();
    for quota in quotas {
        let most = stamps.most_in(quota.window());
        println!("{name}: {quota}: {count} grants in {took:?}, {refused} refusals, fullest window {most}");
        assert!(most <= u64::from(quota.limit()), "{name}: {quota}: {most} in one window");
        fullest.push(most as f64 / f64::from(quota.limit()));
    }
    assert!(refused > 0, "{name}: the threads never reached the limit");
    // Far below what is seen, for a machine that is busy with other things.
    assert!(fullest.iter().any(|full| *full > 0.2), "{name}: no window was near full: {fullest:?}");
}

fn quota(limit: usize, millis: u64, burst: usize) -> Quota {
    let quota = Quota::new((limit / SLOWER) as u32, Duration::from_millis(millis)).unwrap();
    quota.with_burst((burst / SLOWER) as u32).unwrap().without_margin()
}

#[test]
fn a_million_grants_of_a_token_bucket_by_four_threads() {
    let _turn = turn();
    let quota = quota(60_000, 100, 6_000);
    let bucket = TokenBucket::new(quota);
    check("token bucket", &[quota], || bucket.try_acquire().map(drop), GRANTS);
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.granted, snapshot.queued), (GRANTS as u64, 0));
}

#[test]
fn grants_of_a_sliding_window_by_four_threads() {
    let _turn = turn();
    let quota = quota(60_000, 100, 6_000);
    let window = SlidingWindow::new(quota);
    check("sliding window", &[quota], || window.try_acquire().map(drop), GRANTS / 4);
    assert_eq!(window.snapshot().granted, GRANTS as u64 / 4);
}

#[test]
fn grants_of_two_quotas_at_once_by_four_threads() {
    let _turn = turn();
    // The first binds for a while, the second in the end.
    let quotas = [quota(15_000, 20, 1_000), quota(60_000, 100, 6_000)];
    let bucket = TokenBucket::all_of(quotas);
    check("two token buckets", &quotas, || bucket.try_acquire().map(drop), GRANTS / 4);
    let window = SlidingWindow::all_of(quotas);
    check("two sliding windows", &quotas, || window.try_acquire().map(drop), GRANTS / 4);
}

#[test]
fn one_grant_too_many_is_seen() {
    let start = Instant::now();
    let millis = |millis| start + Duration::from_millis(millis);
    let stamp = |before, after| Arrival::between(millis(before), millis(after));
    // Every 10 ms, each taking one: eleven in a closed window of 101 ms, ten in one of 100.
    let mut stamps: Vec<_> = (0..50).map(|number| stamp(number * 10, number * 10 + 1)).collect();
    let most = |stamps: &[Arrival], window| {
        stamps.iter().copied().collect::<Arrivals>().most_in(Duration::from_millis(window))
    };
    assert_eq!((most(&stamps, 100), most(&stamps, 101)), (10, 11));
    // One that may have happened outside counts in no window that it does not lie in; one more inside does.
    stamps.push(stamp(150, 260));
    assert_eq!((most(&stamps, 101), most(&stamps, 110)), (11, 12));
    stamps.push(stamp(155, 156));
    assert_eq!((most(&stamps, 100), most(&stamps, 101)), (11, 12));

    // And by a limiter that breaks it: a bucket of the whole limit, refilled with the whole limit.
    let naive = Quota::per_second(200).unwrap().with_burst(100).unwrap().without_margin();
    let _turn = turn();
    let bucket = TokenBucket::new(naive);
    let (stamps, _) = hammer(160, || bucket.try_acquire().map(drop));
    assert!(stamps.most_in(Duration::from_secs(1)) > 100, "100 a second was kept");
}

#[test]
fn a_server_that_counts_arrivals_sees_no_violation_and_the_quota_used() {
    let _turn = turn();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(hammer_the_server());
}

/// Runs 64 tasks for two windows, over several clients of one preset, with the margin of the presets.
async fn hammer_the_server() {
    const TASKS: usize = 64;
    const WINDOW: Duration = Duration::from_secs(3);
    let quota = Quota::new(100, WINDOW).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    let server =
        MockServer::start(MockConfig { quota: Some((100, WINDOW)), ..MockConfig::new("hammer", "k3y") })
            .await
            .unwrap();
    let preset = StackBuilder::new(&server.base_url())
        .unwrap()
        .with_api_key(ApiKey::new("k3y").unwrap())
        .with_quota(quota);
    // Each has connections of its own; the limiter is the preset's, and so all of theirs.
    let clients: Vec<_> = (0..4).map(|_| preset.clone().client().unwrap()).collect();

    let start = Instant::now();
    let lasting = WINDOW * 2;
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let client = clients[number % clients.len()].clone();
        tasks.spawn(async move {
            let mut statuses = BTreeMap::new();
            loop {
                let Ok(answer) = tokio::time::timeout_at(start + lasting, client.get("/v1")).await else {
                    return statuses;
                };
                *statuses.entry(answer.unwrap().status().as_u16()).or_insert(0) += 1;
            }
        });
    }
    let mut statuses = BTreeMap::new();
    let allowed_in =
        |time: Duration| quota.burst() as u128 + time.as_nanos() / quota.refill_interval().as_nanos();
    while let Some(joined) = tasks.join_next().await {
        for (status, count) in joined.unwrap() {
            *statuses.entry(status).or_insert(0) += count;
        }
    }

    let log = server.request_log();
    // A timer may be late.
    let (allowed, at_most) = (allowed_in(lasting), allowed_in(start.elapsed()));
    println!(
        "{} of {allowed} arrivals over {} connections, at most {} in a window, answers {statuses:?}",
        log.requests.len(),
        log.connections,
        log.most_in(WINDOW),
    );
    assert_eq!(log.violations(), 0);
    assert!(log.most_in(WINDOW) <= 100);
    assert!(log.connections >= 4, "{}", log.connections);
    // All of it where nothing else runs; half, on a machine that is busy with other things.
    assert!(log.requests.len() as u128 * 2 >= allowed, "{} of {allowed}", log.requests.len());
    assert!(log.requests.len() as u128 <= at_most, "{} of {at_most}", log.requests.len());
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200]);
}
