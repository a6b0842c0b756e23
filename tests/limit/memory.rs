//! The memory of a sliding window's log does not depend on the size of the quota or the costs.

use std::{num::NonZeroU32, time::Duration};

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_outbound::{
    Quota,
    limit::{Limiter, PermitRequest, SlidingWindow, TokenBucket},
};

use crate::{costing, permits};

const ALL: NonZeroU32 = NonZeroU32::MAX;

fn largest() -> Quota {
    Quota::per_second(u32::MAX).unwrap()
}

/// Returns the most bytes that `work` has allocated at any moment.
fn peak(work: impl FnMut()) -> u64 {
    allocation_counter::measure(work).bytes_max
}

#[tokio::test(start_paused = true)]
async fn grant_of_the_largest_cost_allocates_one_entry() {
    let window = SlidingWindow::new(largest());
    let bytes = peak(|| {
        window.try_acquire_many(ALL).unwrap();
        window.try_acquire_many(ALL).unwrap_err();
    });
    assert!(bytes < 4_096, "{bytes} bytes");
    assert_eq!(window.snapshot().available, 0);
    tokio::time::advance(Duration::from_millis(1_063)).await;
    assert_eq!(window.snapshot().available, u32::MAX);
    window.acquire_with(&costing(u32::MAX)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn initial_burst_of_zero_allocates_one_entry() {
    let quotas = [largest(), Quota::per_hour(u32::MAX).unwrap()];
    let mut window = None;
    let bytes = peak(|| window = Some(SlidingWindow::all_of(quotas).with_initial_burst(0)));
    assert!(bytes < 4_096, "{bytes} bytes");
    assert_eq!(window.unwrap().snapshot().available, 0);
}

#[tokio::test(start_paused = true)]
async fn log_has_one_entry_for_each_moment() {
    let window = SlidingWindow::new(largest());
    let bytes = peak(|| {
        for _ in 0..10_000 {
            window.try_acquire_many(permits(1_000)).unwrap();
        }
    });
    assert!(bytes < 4_096, "{bytes} bytes");
    for _ in 0..1_000 {
        window.try_acquire_many(permits(1_000)).unwrap();
        tokio::time::advance(Duration::from_nanos(1)).await;
    }
    let bytes = peak(|| window.set_quotas([largest().without_margin()]));
    assert!(bytes < 2 * 16 * 1_024 + 4_096, "{bytes} bytes for 1,000 moments");
}

/// The sum of the costs exceeds 32 bits, and the forecasts reach decades ahead.
#[tokio::test(start_paused = true)]
async fn many_waiters_of_the_largest_cost_are_served_in_order() {
    let window = SlidingWindow::new(largest());
    window.try_acquire_many(ALL).unwrap();
    let mut waiting: Vec<_> =
        (0..1_000).map(|_| task::spawn(window.acquire_with(&costing(u32::MAX)))).collect();
    for wait in &mut waiting {
        assert_pending!(wait.poll());
    }
    let wait = window.try_acquire_many(ALL).unwrap_err().wait().unwrap();
    assert!(wait > Duration::from_millis(1_062) * 1_001, "{wait:?}");
    let bounded = PermitRequest::new().with_cost(ALL).with_max_wait(Duration::from_secs(1_000));
    window.acquire_with(&bounded).await.unwrap_err();
    for wait in waiting.iter_mut().take(3) {
        tokio::time::advance(Duration::from_millis(1_063)).await;
        assert_ready_ok!(wait.poll());
    }

    // The largest cost that a bucket can grant is its burst.
    let bucket = TokenBucket::new(Quota::new(u32::MAX, Duration::from_secs(86_400)).unwrap());
    let burst = permits(u32::MAX / 10);
    bucket.try_acquire_many(burst).unwrap();
    let mut waiting: Vec<_> =
        (0..1_000).map(|_| task::spawn(bucket.acquire_with(&costing(burst.get())))).collect();
    for wait in &mut waiting {
        assert_pending!(wait.poll());
    }
    assert!(bucket.try_acquire_many(burst).unwrap_err().wait().unwrap() > Duration::from_secs(86_400) * 100);
}
