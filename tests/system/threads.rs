//! Tests that no window exceeds its quota when several threads acquire permits in real time. The tests measure at the
//! limiter.
//!
//! The tests of this file run one after another, because concurrent tests would compete for the processor.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    error::{Reason, Refusal},
    limit::LocalLimiter,
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
