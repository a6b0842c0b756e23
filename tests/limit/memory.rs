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

type Kind = (&'static str, fn(Quota) -> LocalLimiter);

const KINDS: [Kind; 4] = [
    ("token bucket", |quota| LocalLimiter::token_bucket(quota)),
    ("paced window", |quota| LocalLimiter::paced_window(quota)),
    ("sliding window", |quota| LocalLimiter::sliding_window(quota)),
    ("adaptive", |quota| LocalLimiter::adaptive(quota)),
];

/// Keys with a quota of 100 per minute, and the bytes that they take. The figures include the key of 8 bytes and the
/// free slots of the table.
struct Keys {
    keyed: Keyed<u64>,
    bytes: i64,
}

impl Keys {
    fn new(make: fn(Quota) -> LocalLimiter) -> Self {
        let quota = Quota::per_minute(100).unwrap();
        Self { keyed: Keyed::new(|_| 0, move |_: &u64| make(quota)), bytes: 0 }
    }

    /// Calls `work` with the limiter of each key.
    fn each(&mut self, keys: std::ops::Range<u64>, mut work: impl FnMut(&LocalLimiter)) {
        let all = || keys.for_each(|key| work(&self.keyed.limiter(&key).unwrap()));
        self.bytes += allocation_counter::measure(all).bytes_current;
    }
}

#[tokio::test(start_paused = true)]
async fn keys_take_little_memory() {
    const KEYS: u64 = 10_000;
    for (kind, make) in KINDS {
        let (mut keys, mut clones) = (Keys::new(make), Vec::with_capacity(KEYS as usize));
        // Without the clones, adding a key would remove the unused ones.
        keys.each(0..KEYS, |limiter| clones.push(limiter.clone()));
        let unused = keys.bytes / KEYS as i64;
        keys.each(0..KEYS, |limiter| drop(limiter.try_acquire().unwrap()));
        let used = keys.bytes / KEYS as i64;
        println!("{kind}: {unused} bytes per key, {used} after a grant");
        let most = if kind == "adaptive" { 1_100 } else { 600 };
        assert!(unused <= 160 && used <= most, "{kind}: {unused} bytes per key, {used} after a grant");
    }
}

/// A log stores up to 100 grants at different times, and has room for 128.
#[tokio::test(start_paused = true)]
async fn idle_keys_take_no_memory_after_lookups_of_other_keys() {
    const KEYS: u64 = 1_000;
    const USED: u64 = 300;
    for (kind, make) in KINDS {
        let mut keys = Keys::new(make);
        for _ in 0..100 {
            keys.each(0..KEYS, |limiter| drop(limiter.try_acquire()));
            advance(millis(610)).await;
        }
        let each = keys.bytes / KEYS as i64;
        assert!(each <= 3_200, "{kind}: {each} bytes per key after 100 grants");
        advance(seconds(62)).await;
        // A key is in use while a clone of its limiter exists. No key is added.
        let used: Vec<_> = (0..USED).map(|key| keys.keyed.limiter(&key).unwrap()).collect();
        for _ in 0..1_000 {
            keys.each(0..USED, |_| ());
        }
        let (idle, left) = (keys.keyed.len() - used.len(), keys.bytes - each * USED as i64);
        println!("{kind}: {each} bytes per key after 100 grants. Later, {idle} idle keys, {left} bytes");
        let left = left / (KEYS - USED) as i64;
        assert!(idle < 10 && left <= 160, "{kind}: {idle} keys with {left} bytes");
    }
}
