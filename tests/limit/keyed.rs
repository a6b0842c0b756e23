//! Tests of `Keyed`: a separate limiter for each key, and the removal of idle keys.

use std::time::Duration;

use http::Request;
use tokio::time::{Instant, advance};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{Keyed, LocalLimiter, RateLimitLayer},
};

use crate::{millis, ok_service, one_per_second};

#[tokio::test(start_paused = true)]
async fn keyed_limiter_gives_each_key_its_own_quota_and_removes_idle_keys() {
    let keyed = Keyed::with_max_keys(
        16,
        |head| head.uri.host().unwrap_or_default().to_owned(),
        |_: &String| LocalLimiter::token_bucket(one_per_second()),
    );
    let layer = RateLimitLayer::new(keyed.clone()).with_max_wait(Duration::ZERO);
    let service = layer.layer(ok_service());
    let to = |host: usize| Request::get(format!("https://host-{host}.example/")).body(()).unwrap();
    service.clone().oneshot(to(0)).await.unwrap();
    assert!(
        service.clone().oneshot(to(0)).await.unwrap_err().is_rate_limited(),
        "the only permit of the first key is spent"
    );

    // Keys in use are never removed. A shard that is full of keys in use refuses new keys.
    let mut refused = 0;
    for host in 1..200 {
        refused += usize::from(service.clone().oneshot(to(host)).await.is_err());
    }
    assert!(refused >= 199 - 16, "{refused}");
    assert!(keyed.len() <= 16);
    assert!(service.clone().oneshot(to(0)).await.is_err(), "the only permit of the first key is still spent");

    // After one second all keys are idle, and new keys replace the idle keys.
    advance(Duration::from_secs(1)).await;
    for host in 1_000..1_010 {
        service.clone().oneshot(to(host)).await.unwrap();
        advance(Duration::from_secs(1)).await;
    }
    assert!(keyed.len() <= 16);
}

/// The figures include the key of 8 bytes and the free slots of the table.
#[test]
fn keys_take_little_memory() {
    const KEYS: u64 = 10_000;
    let quota = Quota::per_minute(100).unwrap();
    type Make = fn(Quota) -> LocalLimiter;
    let kinds: [(&str, Make); 3] = [
        ("token bucket", LocalLimiter::token_bucket),
        ("paced window", LocalLimiter::paced_window),
        ("sliding window", LocalLimiter::sliding_window),
    ];
    for (name, make) in kinds {
        let keyed = Keyed::new(|_| 0, move |_: &u64| make(quota));
        let bytes_per_key = |touch: &dyn Fn(&LocalLimiter)| {
            let allocated = allocation_counter::measure(|| {
                (0..KEYS).for_each(|key| touch(&keyed.limiter(&key).unwrap()));
            });
            allocated.bytes_current / KEYS as i64
        };
        let unused = bytes_per_key(&|_| ());
        let used = bytes_per_key(&|limiter| drop(limiter.try_acquire().unwrap()));
        assert!(unused <= 160 && unused + used <= 600, "{name}: {unused} bytes per key, {used} more in use");
    }
}

/// Limiters of a `Keyed` with the same quota share a clock.
#[tokio::test(start_paused = true)]
async fn keyed_limiter_refills_each_key_from_its_creation() {
    let buckets =
        Keyed::new(|_| 0, |_: &u32| LocalLimiter::token_bucket(one_per_second()).with_initial_burst(0));
    let windows =
        Keyed::new(|_| 0, |_: &u32| LocalLimiter::sliding_window(one_per_second()).with_initial_burst(0));
    let paced =
        Keyed::new(|_| 0, |_: &u32| LocalLimiter::paced_window(one_per_second()).with_initial_burst(0));
    let mut first = Vec::new();
    for (start, keys) in [(0, 0..50), (250, 50..100)] {
        advance(Duration::from_millis(start)).await;
        for key in keys {
            let bucket = buckets.limiter(&key).unwrap();
            let waits = [
                bucket.try_acquire().unwrap_err().wait(),
                windows.limiter(&key).unwrap().try_acquire().unwrap_err().wait(),
                paced.limiter(&key).unwrap().try_acquire().unwrap_err().wait(),
            ];
            if first.is_empty() {
                first = waits.to_vec();
            }
            assert_eq!(waits[..], first[..], "key {key}");
            assert_eq!((bucket.snapshot().granted, bucket.snapshot().refused), (0, 1));
        }
    }
    advance(Duration::from_millis(750)).await;
    for key in 0..100 {
        assert_eq!(buckets.limiter(&key).unwrap().try_acquire().is_ok(), key < 50, "key {key}");
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_the_quota_and_state_of_each_new_limiter() {
    let spent = LocalLimiter::token_bucket(one_per_second());
    spent.try_acquire().unwrap();
    let keyed = Keyed::new(
        |_| 0,
        move |key: &u32| match key % 4 {
            0 => LocalLimiter::token_bucket(one_per_second()),
            1 => LocalLimiter::token_bucket(Quota::per_second(100).unwrap().with_burst(5).unwrap()),
            2 => {
                let paused = LocalLimiter::token_bucket(one_per_second());
                paused.pause_until(Instant::now() + Duration::from_secs(5));
                paused
            }
            _ => spent.clone(),
        },
    );
    for key in 0..200 {
        advance(millis(1)).await;
        let bucket = keyed.limiter(&key).unwrap();
        let granted = std::iter::from_fn(|| bucket.try_acquire().ok().map(drop)).count();
        assert_eq!(granted, [1, 5, 0, 0][key as usize % 4], "key {key}");
        let paused_until = bucket.snapshot().paused_until;
        assert_eq!(
            paused_until,
            (key % 4 == 2).then(|| Instant::now() + Duration::from_secs(5)),
            "key {key}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_removes_idle_keys_even_if_there_is_room_for_new_keys() {
    let quota = Quota::per_second(10).unwrap().without_margin();
    let keyed = Keyed::new(|_| 0, move |_: &u32| LocalLimiter::token_bucket(quota));
    for key in 0..10_000 {
        keyed.limiter(&key).unwrap().try_acquire().unwrap();
        advance(Duration::from_millis(10)).await;
    }
    // A key is in use for a ninth of a second, and a new key is added every 10 ms. About eleven keys are therefore in
    // use. Idle keys are removed a few at a time.
    assert!(keyed.len() < 500, "{}", keyed.len());
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_a_key_until_all_permits_of_its_quotas_are_available() {
    let quotas = [Quota::per_second(10).unwrap(), Quota::per_minute(20).unwrap()];
    let windows = Keyed::new(|_| 0, move |_: &u32| LocalLimiter::sliding_window(quotas));
    let mut granted = 0;
    for second in 0..59 {
        granted += (0..10).filter(|_| windows.limiter(&0).unwrap().try_acquire().is_ok()).count();
        for other in 0..50 {
            let _ = windows.limiter(&(1 + 50 * second + other));
        }
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(granted, 20);
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_accepts_usize_max_as_the_maximum_number_of_keys() {
    let quota = Quota::per_second(10).unwrap().without_margin();
    let keyed = Keyed::with_max_keys(usize::MAX, |_| 0, move |_: &u32| LocalLimiter::token_bucket(quota));
    assert!((0..1_000).all(|key| keyed.limiter(&key).is_ok()));
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_adds_a_key_to_a_full_shard_if_any_key_is_idle() {
    // Each of the 16 shards holds 40 keys, and half of the keys are idle after one second. A search of only a few keys
    // would miss the idle keys.
    let long = Quota::new(2, Duration::from_secs(3_600)).unwrap().with_burst(1).unwrap().without_margin();
    let make =
        move |key: &u32| LocalLimiter::token_bucket(if key % 2 == 0 { long } else { one_per_second() });
    let keyed = Keyed::with_max_keys(640, |_| 0, make);
    assert!(keyed.is_empty());
    for key in 0..10_000 {
        if let Ok(limiter) = keyed.limiter(&key) {
            limiter.try_acquire().unwrap();
        }
    }
    assert_eq!((keyed.len(), keyed.is_empty()), (640, false));
    advance(Duration::from_secs(1)).await;
    for key in 0..60 {
        keyed.limiter(&(20_000 + 2 * key)).unwrap().try_acquire().unwrap();
    }
    assert_eq!(keyed.len(), 640);
}

#[derive(Debug, Clone, Copy, PartialEq)]
/// The reason why a key is in use.
enum InUse {
    /// The spent permit of the key is not refilled yet.
    Spent,
    /// A request of the key was dropped after it was sent, and may still reach the server.
    Unconfirmed,
    /// The limiter of the key is paused.
    Paused,
    /// The test holds a clone of the key's limiter.
    Cloned,
}

/// Asserts that the limiter keeps key 0 until the key is idle, and then removes it for a new key. Each shard has room
/// for one key.
macro_rules! assert_removed_when_idle {
    ($limiter:expr, $quotas:expr) => {
        for (in_use, idle_after) in [
            (InUse::Spent, 1_001),
            (InUse::Unconfirmed, 10_101),
            (InUse::Paused, 60_001),
            (InUse::Cloned, u64::MAX),
        ] {
            let keyed = Keyed::with_max_keys(16, |_| 0, move |_: &u32| $limiter($quotas));
            // Adds 499 other keys. The limiter removes key 0 to make room for them if key 0 is idle.
            let is_kept = || {
                for other in 1..500 {
                    let _ = keyed.limiter(&other);
                }
                keyed.limiter(&0).is_ok_and(|limiter| limiter.snapshot().granted == 1)
            };
            let limiter = keyed.limiter(&0).unwrap();
            let mut permit = limiter.try_acquire_owned().unwrap();
            match in_use {
                InUse::Unconfirmed => permit.mark_sent(Instant::now()),
                InUse::Paused => limiter.pause_until(Instant::now() + millis(60_000)),
                InUse::Spent | InUse::Cloned => {}
            }
            drop(permit);
            if in_use == InUse::Cloned {
                advance(millis(100_000)).await;
                assert!(is_kept(), "key 0 was removed although it is in use: {in_use:?}");
                continue;
            }
            drop(limiter);
            advance(millis(idle_after - 200)).await;
            assert!(is_kept(), "key 0 was removed although it is in use: {in_use:?}");
            advance(millis(200)).await;
            assert!(!is_kept(), "key 0 was kept although it is idle, after the state {in_use:?}");
        }
    };
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_a_key_until_the_key_is_idle() {
    let window = Quota::new(1, millis(1_000)).unwrap().without_margin();
    assert_removed_when_idle!(LocalLimiter::token_bucket, [one_per_second()]);
    assert_removed_when_idle!(LocalLimiter::token_bucket, [one_per_second(), one_per_second()]);
    assert_removed_when_idle!(LocalLimiter::sliding_window, [window]);
    assert_removed_when_idle!(LocalLimiter::sliding_window, [window, window]);
}
