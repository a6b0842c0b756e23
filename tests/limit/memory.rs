//! Tests of the limiters' allocations. The memory of a sliding window's log does not depend on the quota or on the
//! costs of requests.

use std::{future::ready, num::NonZeroU32, time::Duration};

use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower_outbound::{
    Quota,
    limit::{Limiter, LocalLimiter, PermitRequest},
};

use crate::{costing, one_per_second, permits};

const ALL: NonZeroU32 = NonZeroU32::MAX;

fn largest() -> Quota {
    Quota::per_second(u32::MAX).unwrap()
}

/// Returns the peak number of bytes that `work` allocates.
fn peak(work: impl FnMut()) -> u64 {
    allocation_counter::measure(work).bytes_max
}

#[tokio::test(start_paused = true)]
async fn sliding_window_adds_one_log_entry_for_a_grant_of_the_largest_cost() {
    let window = LocalLimiter::sliding_window(largest());
    let bytes = peak(|| {
        window.try_acquire_many(ALL).unwrap();
        window.try_acquire_many(ALL).unwrap_err();
    });
    assert!(bytes < 4_096, "peak of {bytes} bytes, expected less than 4,096 bytes");
    assert_eq!(window.snapshot().available, 0);
    tokio::time::advance(Duration::from_millis(1_063)).await;
    assert_eq!(window.snapshot().available, u32::MAX);
    window.acquire_with(&costing(u32::MAX)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn initial_burst_of_zero_adds_one_log_entry_for_each_quota() {
    let quotas = [largest(), Quota::per_hour(u32::MAX).unwrap()];
    let mut window = None;
    let bytes = peak(|| window = Some(LocalLimiter::sliding_window(quotas).with_initial_burst(0)));
    assert!(bytes < 4_096, "peak of {bytes} bytes, expected less than 4,096 bytes");
    assert_eq!(window.unwrap().snapshot().available, 0);
}

#[tokio::test(start_paused = true)]
async fn sliding_window_stores_simultaneous_grants_in_one_log_entry() {
    let window = LocalLimiter::sliding_window(largest());
    let bytes = peak(|| {
        for _ in 0..10_000 {
            window.try_acquire_many(permits(1_000)).unwrap();
        }
    });
    assert!(bytes < 4_096, "peak of {bytes} bytes, expected less than 4,096 bytes");
    for _ in 0..1_000 {
        window.try_acquire_many(permits(1_000)).unwrap();
        tokio::time::advance(Duration::from_nanos(1)).await;
    }
    let bytes = peak(|| window.set_quotas([largest().without_margin()]));
    assert!(bytes < 2 * 16 * 1_024 + 4_096, "peak of {bytes} bytes for grants at 1,000 different times");
}

/// The sum of the costs exceeds 32 bits. The token bucket forecasts a wait of more than 100 days.
#[tokio::test(start_paused = true)]
async fn waiters_with_the_largest_cost_get_permits_in_fifo_order() {
    let window = LocalLimiter::sliding_window(largest());
    window.try_acquire_many(ALL).unwrap();
    let mut waiting: Vec<_> =
        (0..1_000).map(|_| task::spawn(window.acquire_with(&costing(u32::MAX)))).collect();
    for waiter in &mut waiting {
        assert_pending!(waiter.poll());
    }
    let wait = window.try_acquire_many(ALL).unwrap_err().wait().unwrap();
    assert!(wait > Duration::from_millis(1_062) * 1_001, "{wait:?}");
    let bounded = PermitRequest::new().with_cost(ALL).with_max_wait(Duration::from_secs(1_000));
    window.acquire_with(&bounded).await.unwrap_err();
    for waiter in waiting.iter_mut().take(3) {
        // A window and its margin, and the 4 ms for which the driver gathers waiters.
        tokio::time::sleep(Duration::from_millis(1_067)).await;
        assert_ready_ok!(waiter.poll());
    }

    // A token bucket's burst is the largest cost that the bucket can grant.
    let bucket = LocalLimiter::token_bucket(Quota::new(u32::MAX, Duration::from_secs(86_400)).unwrap());
    let burst = permits(u32::MAX / 10);
    bucket.try_acquire_many(burst).unwrap();
    let mut waiting: Vec<_> =
        (0..1_000).map(|_| task::spawn(bucket.acquire_with(&costing(burst.get())))).collect();
    for waiter in &mut waiting {
        assert_pending!(waiter.poll());
    }
    assert!(bucket.try_acquire_many(burst).unwrap_err().wait().unwrap() > Duration::from_secs(86_400) * 100);
}

#[tokio::test(start_paused = true)]
async fn limiter_allocates_nothing_for_an_immediate_grant_or_refusal() {
    let bucket = LocalLimiter::token_bucket(one_per_second());
    bucket.snapshot();
    let granted = allocation_counter::measure(|| {
        assert!(assert_ready!(task::spawn(bucket.acquire()).poll()).is_ok());
    });
    let mock_task = allocation_counter::measure(|| drop(task::spawn(ready(()))));
    assert_eq!(granted.count_total, mock_task.count_total);
    let refused = allocation_counter::measure(|| {
        assert_eq!(bucket.try_acquire().unwrap_err().wait(), Some(Duration::from_secs(1)));
    });
    assert_eq!(refused.count_total, 0);
    let created =
        allocation_counter::measure(|| std::mem::forget(LocalLimiter::token_bucket(one_per_second())));
    assert!(
        created.count_current <= 3,
        "expected one allocation each for the limiter, its setup and its quotas: {created:?}"
    );
}
