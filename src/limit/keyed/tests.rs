use std::time::Duration;

use super::*;
use crate::policy::Quota;

/// Limiters of one permit, which is refilled after an hour.
fn hourly<K: Hash + Eq + Clone>(max_keys: usize) -> KeyedBucket<K> {
    let quota = Quota::new(2, Duration::from_secs(3_600)).and_then(|quota| quota.with_burst(1));
    let quota = quota.unwrap().without_margin();
    let make = move |_: &K| TokenBucket::new(quota);
    Keyed::with_max_keys(max_keys, |_| panic!("no request is sent here"), make)
}

fn takes<K: Hash + Eq + Clone>(keyed: &KeyedBucket<K>, key: K) -> bool {
    keyed.limiter(&key).is_ok_and(|limiter| limiter.try_acquire().is_ok())
}

#[tokio::test(start_paused = true)]
async fn keeps_keys_in_use_while_the_tables_grow() {
    let keyed = hourly(20_000);
    for key in 0..10_000 {
        assert!(takes(&keyed, key));
    }
    assert_eq!(keyed.len(), 10_000);
    assert!((0..10_000).all(|key| !takes(&keyed, key)), "the permit of each key is still spent");
}

#[tokio::test(start_paused = true)]
async fn stores_each_key_once() {
    let keyed = hourly(16);
    let key: Arc<str> = Arc::from("tenant");
    assert!(takes(&keyed, Arc::clone(&key)));
    assert_eq!(Arc::strong_count(&key), 2);
}

#[tokio::test(start_paused = true)]
async fn finds_the_only_idle_key_of_a_full_shard_in_one_pass() {
    let keyed = hourly(16 * 500);
    let newcomers = (0..).filter(|key| keyed.shared.hasher.hash_one(key) >> 32 & 15 == 0);
    let mut newcomers = newcomers.take(1_000);
    let idle = newcomers.next().unwrap();
    keyed.limiter(&idle).unwrap();
    for key in newcomers.by_ref().take(499) {
        keyed.limiter(&key).unwrap().try_acquire().unwrap();
        // Adding the key may have removed the idle one while there was room, so it is added again.
        keyed.limiter(&idle).unwrap();
    }
    assert_eq!(keyed.len(), 500);
    let tries = newcomers.position(|key| takes(&keyed, key)).unwrap();
    assert!(tries <= 500 / LOOKS_IF_FULL + 1, "{tries}");
    assert_eq!(keyed.len(), 500);
}

#[tokio::test(start_paused = true)]
async fn as_many_new_keys_remove_the_idle_ones() {
    const CROWD: u32 = 16_000;
    let keyed = hourly(2 * CROWD as usize);
    assert!((0..CROWD).all(|key| takes(&keyed, key)));
    for key in CROWD..2 * CROWD {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(takes(&keyed, key));
    }
    // A pass over the slots of the idle keys takes an eighth as many new keys.
    assert!(keyed.len() <= CROWD as usize / 6, "{}", keyed.len());
}
