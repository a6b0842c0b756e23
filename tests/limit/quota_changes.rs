//! Tests of `set_quotas`, which replaces the quotas of a limiter that is in use.

use std::time::Duration;

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, LocalLimiter},
    test_util::Arrivals,
};

use crate::{costing, permits};

#[tokio::test(start_paused = true)]
async fn repeated_quota_changes_lose_no_permits() {
    for every in [100, 300, 600, 700] {
        let quota = Quota::per_minute(100).unwrap().with_burst(1).unwrap().without_margin();
        let other = Quota::per_minute(101).unwrap().with_burst(1).unwrap().without_margin();
        let (bucket, start) = (LocalLimiter::token_bucket(quota), Instant::now());
        let mut granted = 0;
        for number in 0.. {
            if start.elapsed() > Duration::from_secs(600) {
                break;
            }
            // The loop alternates between two quotas that differ by one permit per minute.
            bucket.set_quotas([if number % 3 == 0 { other } else { quota }]);
            granted += usize::from(bucket.try_acquire().is_ok());
            tokio::time::advance(Duration::from_millis(every)).await;
        }
        let least = 600_000 / 607_u64.next_multiple_of(every);
        assert!(
            granted as u64 >= least && granted <= 991,
            "{granted} grants with a quota change every {every} ms, expected {least} to 991"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn permits_spent_before_a_quota_change_count_against_the_new_quota() {
    let before = Quota::new(20, Duration::from_secs(10)).unwrap().with_burst(10).unwrap().without_margin();
    let after = Quota::new(40, Duration::from_secs(10)).unwrap().with_burst(20).unwrap().without_margin();
    let bucket = LocalLimiter::token_bucket(before);
    bucket.acquire_with(&costing(8)).await.unwrap();
    bucket.set_quotas([after]);
    assert_eq!(
        bucket.snapshot().available,
        2,
        "the additional permits of a larger burst become available gradually"
    );
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(bucket.snapshot().available, 12);

    // The new quota also applies to queued waiters. A waiter whose cost exceeds the new burst is refused.
    let bucket = LocalLimiter::token_bucket(before);
    bucket.acquire_with(&costing(10)).await.unwrap();
    let waiting = tokio::spawn(bucket.acquire_with(&costing(6)));
    let too_costly = tokio::spawn(bucket.acquire_with(&costing(9)));
    tokio::task::yield_now().await;
    let start = Instant::now();
    bucket.set_quotas([Quota::new(80, Duration::from_secs(10))
        .unwrap()
        .with_burst(8)
        .unwrap()
        .without_margin()]);
    assert_eq!(too_costly.await.unwrap().unwrap_err().reason(), Reason::TooCostly { largest: 8 });
    waiting.await.unwrap().unwrap();
    // Ten permits are spent, two more than the new burst of eight, and the waiter needs six. The bucket must therefore
    // refill eight permits, one every 10 s / 72.
    assert_eq!(start.elapsed().as_millis(), 1_112);

    let window = LocalLimiter::sliding_window(before);
    window.acquire_with(&costing(15)).await.unwrap();
    window.set_quotas([Quota::new(16, Duration::from_secs(10)).unwrap().without_margin()]);
    assert_eq!(window.snapshot().available, 1);
}

#[tokio::test(start_paused = true)]
async fn changing_a_quota_and_restoring_it_grants_no_extra_permits() {
    let minute = Duration::from_secs(60);
    let of = |limit, burst| Quota::new(limit, minute).unwrap().with_burst(burst).unwrap().without_margin();
    for bursts in [[10, 90, 90], [90, 10, 90], [10, 90, 10], [50, 99, 1]] {
        let bucket = LocalLimiter::token_bucket(of(100, bursts[0]));
        let grants = Arrivals::new();
        for second in 0..200 {
            if second % 20 == 10 {
                bucket.set_quotas([of(100, bursts[second / 20 % 3])]);
            }
            for _ in 0..10 {
                while bucket.try_acquire().is_ok() {
                    grants.note();
                }
                tokio::time::advance(Duration::from_millis(100)).await;
            }
        }
        assert!(
            grants.most_in(minute) <= 100,
            "bursts {bursts:?}: {} grants in one minute, expected at most 100",
            grants.most_in(minute)
        );
    }
    let window = LocalLimiter::sliding_window(of(100, 1));
    let mut grants = Vec::new();
    for limit in [100, 10, 100] {
        window.set_quotas([of(limit, 1)]);
        while window.try_acquire().is_ok() {
            grants.push(Instant::now());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(grants.len(), 100);
}

/// The wait for a million permits at one permit per year is capped, so that no calculation overflows.
#[tokio::test(start_paused = true)]
async fn spent_permits_still_count_after_a_temporary_quota_of_one_permit_per_year() {
    let fast = Quota::per_second(2_000_000).unwrap().with_burst(1_000_000).unwrap().without_margin();
    let slow =
        Quota::new(2, Duration::from_secs(366 * 86_400)).unwrap().with_burst(1).unwrap().without_margin();
    let bucket = LocalLimiter::token_bucket(fast);
    bucket.try_acquire_many(permits(1_000_000)).unwrap();
    bucket.set_quotas([slow]);
    let wait = bucket.try_acquire().unwrap_err().wait().unwrap();
    let years = wait.as_secs() / (365 * 86_400);
    assert!((100..150).contains(&years), "{years}");
    bucket.set_quotas([fast]);
    assert!(bucket.try_acquire().is_err());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(bucket.snapshot().available, 1_000_000);
}

/// A grant after a late timer is backdated within the margin. A change to a smaller margin must not shorten the window.
#[tokio::test(start_paused = true)]
async fn change_to_a_smaller_margin_after_a_late_timer_exceeds_no_window() {
    let quota = Quota::new(10, Duration::from_secs(60)).unwrap();
    let with_margin = quota.with_margin(Duration::from_secs(4)).unwrap();
    let limiter = LocalLimiter::sliding_window(with_margin);
    limiter.acquire_many(permits(10)).await.unwrap();
    let mut waiting = tokio_test::task::spawn(limiter.acquire_many(permits(10)));
    tokio_test::assert_pending!(waiting.poll());
    // The timer fires 1 s late.
    tokio::time::advance(Duration::from_secs(65)).await;
    tokio_test::assert_ready_ok!(waiting.poll());
    let start = Instant::now();
    limiter.set_quotas([quota.without_margin()]);
    limiter.acquire().await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(60), "{:?}", start.elapsed());
}
