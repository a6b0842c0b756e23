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

#[test]
fn default_has_room_for_100_000_keys_in_use() {
    const KEYS: u64 = 100_000;
    let quota = Quota::per_hour(2).unwrap().with_burst(1).unwrap();
    let keyed = Keyed::new(|_| 0, move |_: &u64| LocalLimiter::paced_window(quota));
    let takes = |key| keyed.limiter(&key).is_ok_and(|limiter| limiter.try_acquire().is_ok());
    let bytes = allocation_counter::measure(|| assert!((0..KEYS).all(takes))).bytes_current;
    assert!(bytes / KEYS as i64 <= 600, "{bytes} bytes");
    assert_eq!(keyed.len() as u64, KEYS);
    assert!(!takes(KEYS), "all keys are in use");
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
