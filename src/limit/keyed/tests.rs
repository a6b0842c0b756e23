use std::time::Duration;

use super::*;
use crate::policy::Quota;

/// Creates keyed limiters of one permit each. A spent permit is refilled after an hour.
fn hourly<K: Hash + Eq + Clone>(max_keys: usize) -> Keyed<K> {
    let quota = Quota::new(2, Duration::from_secs(3_600)).and_then(|quota| quota.with_burst(1));
    let quota = quota.unwrap().without_margin();
    let make = move |_: &K| LocalLimiter::token_bucket(quota);
    Keyed::with_max_keys(max_keys, |_| panic!("these tests compute no key from a request"), make)
}

fn takes<K: Hash + Eq + Clone>(keyed: &Keyed<K>, key: K) -> bool {
    keyed.limiter(&key).is_ok_and(|limiter| limiter.try_acquire().is_ok())
}

#[tokio::test(start_paused = true)]
async fn keys_in_use_are_kept_while_the_tables_grow() {
    let keyed = hourly(20_000);
    for key in 0..10_000 {
        assert!(takes(&keyed, key));
    }
    assert_eq!(keyed.len(), 10_000);
    assert!((0..10_000).all(|key| !takes(&keyed, key)), "the permit of each key is still spent");
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_stores_one_copy_of_each_key() {
    let keyed = hourly(16);
    let key: Arc<str> = Arc::from("tenant");
    assert!(keyed.is_empty());
    assert!(takes(&keyed, Arc::clone(&key)));
    assert_eq!((Arc::strong_count(&key), keyed.is_empty()), (2, false));
}

#[tokio::test(start_paused = true)]
async fn full_shard_finds_its_single_idle_key_in_one_pass() {
    let keyed = hourly(500);
    let new_keys = (0..).filter(|key| keyed.shared.hasher.hash_one(key) >> 32 & 15 == 0);
    let mut new_keys = new_keys.take(1_000);
    let idle = new_keys.next().unwrap();
    keyed.limiter(&idle).unwrap();
    for key in new_keys.by_ref().take(499) {
        keyed.limiter(&key).unwrap().try_acquire().unwrap();
        // The call above removed the idle key, because it added a new key. This call adds the idle key again.
        keyed.limiter(&idle).unwrap();
    }
    assert_eq!(keyed.len(), 500);
    let tries = new_keys.position(|key| takes(&keyed, key)).unwrap();
    assert!(tries <= 500 / CHECKED_KEYS_IF_FULL + 1, "{tries}");
    assert_eq!(keyed.len(), 500);
}

#[tokio::test(start_paused = true)]
async fn full_keyed_limiter_replaces_an_idle_key_of_another_shard() {
    for max_keys in [1, 2, 40] {
        let keyed = hourly(max_keys);
        assert!((1..max_keys).all(|key| takes(&keyed, key)));
        // The only idle key is replaced each time.
        for key in max_keys..1_000 {
            assert!(keyed.limiter(&key).is_ok(), "{key} of {max_keys}");
            assert_eq!(keyed.len(), max_keys);
        }
        assert!(takes(&keyed, 1_000));
        assert_eq!(keyed.limiter(&1_001).unwrap_err().reason(), Reason::TooManyKeys);
    }
}

#[tokio::test(start_paused = true)]
async fn adding_new_keys_removes_idle_keys() {
    const KEYS: u32 = 16_000;
    let keyed = hourly(2 * KEYS as usize);
    assert!((0..KEYS).all(|key| takes(&keyed, key)));
    for key in KEYS..2 * KEYS {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(takes(&keyed, key));
        // Each new key takes a bounded time, although all others are idle.
        assert!(key > KEYS || keyed.len() > KEYS as usize - CHECKED_KEYS, "{}", keyed.len());
    }
    // At the end, most slots are empty. One pass over all slots then takes only `KEYS / 8` new keys, and removes all
    // keys except those added since the previous pass.
    assert!(keyed.len() <= KEYS as usize / 6, "{}", keyed.len());
}
