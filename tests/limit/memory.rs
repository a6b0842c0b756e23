//! Tests of the limiters' allocations. The memory of a sliding window's log does not depend on the quota or on the
//! costs of requests.

use super::*;

const ALL: NonZeroU32 = NonZeroU32::MAX;

fn largest() -> Quota {
    Quota::per_second(u32::MAX).unwrap()
}

/// Asserts that `work` allocates at most `most` bytes at once.
#[track_caller]
fn assert_peak(most: u64, work: impl FnMut()) {
    let bytes = allocation_counter::measure(work).bytes_max;
    assert!(bytes < most, "peak of {bytes} bytes, expected less than {most}");
}

#[tokio::test(start_paused = true)]
async fn sliding_window_adds_one_log_entry_for_a_grant_of_the_largest_cost() {
    let window = LocalLimiter::sliding_window(largest());
    assert_peak(4_096, || {
        window.try_acquire_many(ALL).unwrap();
        window.try_acquire_many(ALL).unwrap_err();
    });
    assert_eq!(window.snapshot().available, 0);
    advance(millis(1_063)).await;
    assert_eq!(window.snapshot().available, u32::MAX);
    window.acquire_many(ALL).await.unwrap();
    // An initial burst of zero adds one entry for each quota.
    let quotas = [largest(), Quota::per_hour(u32::MAX).unwrap()];
    let new = || LocalLimiter::sliding_window(quotas).with_initial_burst(0);
    assert_peak(4_096, || assert_eq!(new().snapshot().available, 0));
}

#[tokio::test(start_paused = true)]
async fn sliding_window_stores_simultaneous_grants_in_one_log_entry() {
    let window = LocalLimiter::sliding_window(largest());
    let take = || drop(window.try_acquire_many(permits(1_000)).unwrap());
    assert_peak(4_096, || (0..10_000).for_each(|_| take()));
    for _ in 0..1_000 {
        take();
        advance(std::time::Duration::from_nanos(1)).await;
    }
    // There are grants at 1,000 different times.
    assert_peak(2 * 16 * 1_024 + 4_096, || window.set_quotas([largest().without_margin()]));
}

/// The sum of the costs exceeds 32 bits. The token bucket forecasts a wait of more than 100 days.
#[tokio::test(start_paused = true)]
async fn waiters_with_the_largest_cost_get_permits_in_fifo_order() {
    let window = LocalLimiter::sliding_window(largest());
    let bucket = LocalLimiter::token_bucket(Quota::new(u32::MAX, seconds(86_400)).unwrap());
    // A token bucket's burst is the largest cost that the bucket can grant.
    let hundred_days = seconds(86_400) * 100;
    let burst = permits(u32::MAX / 10);
    for (limiter, cost, least, served) in
        [(&window, ALL, millis(1_062) * 1_001, 3), (&bucket, burst, hundred_days, 0)]
    {
        limiter.try_acquire_many(cost).unwrap();
        let mut waiting: Vec<_> = (0..1_000).map(|_| queued(limiter, &costing(cost.get()))).collect();
        let wait = limiter.try_acquire_many(cost).unwrap_err().wait().unwrap();
        assert!(wait > least, "{wait:?}");
        let bounded = costing(cost.get()).with_max_wait(seconds(1_000));
        limiter.acquire_with(&bounded).await.unwrap_err();
        for waiter in waiting.iter_mut().take(served) {
            // A window and its margin, and the 4 ms for which the driver gathers waiters.
            tokio::time::sleep(millis(1_067)).await;
            assert_ready_ok!(waiter.poll());
        }
    }
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
        assert_eq!(bucket.try_acquire().unwrap_err().wait(), Some(seconds(1)));
    });
    assert_eq!(refused.count_total, 0);
    let created =
        allocation_counter::measure(|| std::mem::forget(LocalLimiter::token_bucket(one_per_second())));
    // One allocation each for the limiter, its setup and its quotas.
    assert!(created.count_current <= 3, "{created:?}");
}

/// The figures include the key of 8 bytes and the free slots of the table.
#[test]
fn keys_take_little_memory() {
    const KEYS: u64 = 10_000;
    let kinds: [fn(Quota) -> LocalLimiter; 3] =
        [LocalLimiter::token_bucket, LocalLimiter::paced_window, LocalLimiter::sliding_window];
    for (kind, make) in kinds.into_iter().enumerate() {
        let quota = Quota::per_minute(100).unwrap();
        let keyed = Keyed::new(|_| 0, move |_: &u64| make(quota));
        let bytes_per_key = |touch: &dyn Fn(&LocalLimiter)| {
            let allocated = allocation_counter::measure(|| {
                (0..KEYS).for_each(|key| touch(&keyed.limiter(&key).unwrap()));
            });
            allocated.bytes_current / KEYS as i64
        };
        let unused = bytes_per_key(&|_| ());
        let used = bytes_per_key(&|limiter| drop(limiter.try_acquire().unwrap()));
        assert!(unused <= 160 && unused + used <= 600, "{kind}: {unused} bytes per key, {used} more in use");
    }
}
