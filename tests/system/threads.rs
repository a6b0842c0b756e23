//! Tests that no window exceeds its quota when several threads acquire permits in real time. The tests measure at the
//! limiter.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    error::Reason,
    limit::LocalLimiter,
    test_util::{Arrival, Arrivals},
};

const THREADS: usize = 4;

/// The number of permits that the threads acquire: a million, or a quarter of a million in a build with debug
/// assertions.
const GRANTS: usize = 1_000_000 / SLOWDOWN;
const SLOWDOWN: usize = if cfg!(debug_assertions) { 4 } else { 1 };

/// Acquires `count` permits in all, in busy loops on four threads. Returns the times of the grants and the number of
/// refusals.
fn acquire_from_threads(count: usize, limiter: &LocalLimiter) -> (Arrivals, usize) {
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
                        grants.push(acquire_one(limiter, &refusals));
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
fn acquire_one(limiter: &LocalLimiter, refusals: &AtomicUsize) -> Arrival {
    loop {
        let before = Instant::now();
        let result = limiter.try_acquire();
        let after = Instant::now();
        match result {
            Ok(_) => return Arrival::between(before, after),
            Err(refusal) => {
                assert_eq!(refusal.reason(), Reason::MaxWait);
                refusals.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        }
    }
}

fn quota(limit: usize, millis: u64, burst: usize) -> Quota {
    let quota = Quota::new((limit / SLOWDOWN) as u32, Duration::from_millis(millis)).unwrap();
    quota.with_burst((burst / SLOWDOWN) as u32).unwrap().without_margin()
}

#[test]
fn limiters_stay_within_their_quotas_with_four_threads() {
    let one = vec![quota(60_000, 100, 6_000)];
    // The first quota has the smaller burst, and the second quota has the lower rate.
    let two = vec![quota(15_000, 20, 1_000), one[0]];
    // The fast clock is not as exact as the one by which the test measures.
    #[cfg(feature = "quanta")]
    let with_margin = vec![one[0].with_margin(Duration::from_millis(1)).unwrap()];
    for (limiter, quotas, count) in [
        (LocalLimiter::paced_window(one.clone()), &one, GRANTS / 4),
        (LocalLimiter::token_bucket(one.clone()), &one, GRANTS),
        (LocalLimiter::sliding_window(one.clone()), &one, GRANTS / 4),
        (LocalLimiter::paced_window(two.clone()), &two, GRANTS / 4),
        (LocalLimiter::token_bucket(two.clone()), &two, GRANTS / 4),
        (LocalLimiter::sliding_window(two.clone()), &two, GRANTS / 4),
        #[cfg(feature = "quanta")]
        (LocalLimiter::paced_window(with_margin.clone()).with_quanta_clock(), &with_margin, GRANTS / 4),
    ] {
        let (grants, refusals) = acquire_from_threads(count, &limiter);
        let snapshot = limiter.snapshot();
        assert_eq!((snapshot.granted, snapshot.queued), (count as u64, 0), "{limiter:?}");
        // The load is high: the limiter refused some calls, and the fullest window of a quota held more than 20 % of
        // its limit. The bound is low, because threads on a busy machine acquire fewer permits.
        let fullest = quotas.iter().map(|quota| (grants.most_in(quota.window()), u64::from(quota.limit())));
        let fullest: Vec<_> = fullest.collect();
        assert!(fullest.iter().all(|(most, limit)| most <= limit), "{limiter:?}: {fullest:?}");
        let is_loaded = refusals > 0 && fullest.iter().any(|(most, limit)| most * 5 > *limit);
        assert!(is_loaded, "{limiter:?}: {refusals} refusals, {fullest:?}");
    }
}
