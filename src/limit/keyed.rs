use std::{
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hashbrown::HashTable;

use super::{Head, LocalLimiter, Reason, Refusal, Select, gcra::Gcra, meter::Meter};

/// A limiter for each key: host, tenant, API key, whatever is drawn from the request.
///
/// A key costs memory, some 250 bytes, only while something is owed or awaited under it: whenever a key is added,
/// others that are idle, their quota whole again, nobody waiting and nothing that the server said still holding, are
/// let go. Nothing runs in the background, and no key that still owes something is forgotten: when there is no room, a
/// request under a new one is refused. A server that says what is left until the end of the day keeps a key for as
/// long: make room for as many as come in that time. The keys are spread over 16 shards by their hash, each with a
/// sixteenth of the room, so one may be full before all are.
///
/// # Default
///
/// At most 100,000 keys.
///
/// # Clone
///
/// Clones share the limiters.
///
/// ```
/// use tower_outbound::{Quota, limit::{Keyed, RateLimitLayer, TokenBucket}};
///
/// let quota = Quota::per_minute(100)?;
/// let by_host = Keyed::new(
///     |head| head.uri.host().unwrap_or_default().to_owned(),
///     move |_host| TokenBucket::new(quota),
/// );
/// let layer = RateLimitLayer::new(by_host);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub struct Keyed<K, M: Meter = Gcra> {
    shared: Arc<Shared<K, M>>,
}

struct Shared<K, M: Meter> {
    key: Box<dyn Fn(Head<'_>) -> K + Send + Sync>,
    make: Make<K, M>,
    /// By the key's hash, so that keys of different shards don't contend.
    shards: [Mutex<Shard<K, M>>; SHARDS],
    /// In each shard.
    room: usize,
    hasher: RandomState,
}

type Make<K, M> = Box<dyn Fn(&K) -> LocalLimiter<M> + Send + Sync>;

const SHARDS: usize = 16;

/// Keys that are looked at whenever one is added: more than one, so that the idle go faster than new ones come.
const LOOKS: usize = 2;

/// Keys that are looked at in a full shard before a new one is refused. The next one looks at others.
const LOOKS_IF_FULL: usize = 64;

/// Slots that are passed for each of these looks, at most: where most keys are gone, most slots are empty.
const SLOTS_A_LOOK: usize = 8;

struct Shard<K, M: Meter> {
    limiters: HashTable<(K, LocalLimiter<M>)>,
    /// The slot that is looked at next. To go round the slots, and not down a list, takes no second copy of the
    /// keys. When the table grows, some keys are looked at before their turn and some after it.
    hand: usize,
}

impl<K, M> Keyed<K, M>
where
    K: Hash + Eq + Clone,
    M: Meter,
{
    /// Draws the key from a request by `key`, and makes the limiter of a new one by `make`.
    pub fn new(
        key: impl Fn(Head<'_>) -> K + Send + Sync + 'static,
        make: impl Fn(&K) -> LocalLimiter<M> + Send + Sync + 'static,
    ) -> Self {
        Self::with_max_keys(100_000, key, make)
    }

    /// The same with room for so many keys at once, rounded up to a multiple of 16.
    pub fn with_max_keys(
        max_keys: usize,
        key: impl Fn(Head<'_>) -> K + Send + Sync + 'static,
        make: impl Fn(&K) -> LocalLimiter<M> + Send + Sync + 'static,
    ) -> Self {
        let shard = || Mutex::new(Shard { limiters: HashTable::new(), hand: 0 });
        Self {
            shared: Arc::new(Shared {
                key: Box::new(key),
                make: Box::new(make),
                shards: std::array::from_fn(|_| shard()),
                room: max_keys.div_ceil(SHARDS).max(1),
                hasher: RandomState::new(),
            }),
        }
    }

    /// The limiter of `key`, made when there is none.
    ///
    /// # Errors
    ///
    /// When there is no room for another key, and none of those looked at is idle.
    pub fn limiter(&self, key: &K) -> Result<LocalLimiter<M>, Refusal> {
        let hash = self.shared.hasher.hash_one(key);
        // The table goes by the lowest and the highest bits.
        let mut shard = self.shared.shard((hash >> 32) as usize % SHARDS);
        if let Some((_, limiter)) = shard.limiters.find(hash, |(known, _)| known == key) {
            return Ok(limiter.clone());
        }
        let room = self.shared.room;
        let looks = if shard.limiters.len() < room { LOOKS } else { LOOKS_IF_FULL };
        shard.let_idle_go(looks, room);
        if shard.limiters.len() >= room {
            return Err(Refusal::new(Reason::TooManyKeys, None));
        }
        let limiter = (self.shared.make)(key);
        let entry = (key.clone(), limiter.clone());
        shard.limiters.insert_unique(hash, entry, |(key, _)| self.shared.hasher.hash_one(key));
        Ok(limiter)
    }

    /// How many keys there are at the moment.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|shard| self.shared.shard(shard).limiters.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, M: Meter> Shared<K, M> {
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard<K, M>> {
        // A panic of `make` or of the key's own code leaves at most one key less behind.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, M: Meter> Shard<K, M> {
    /// Looks at so many keys, or until one place is free in a full shard.
    fn let_idle_go(&mut self, looks: usize, room: usize) {
        let (full, slots) = (self.limiters.len() >= room, self.limiters.num_buckets());
        let mut looked = 0;
        for _ in 0..slots.min(looks * SLOTS_A_LOOK) {
            let slot = self.hand % slots;
            self.hand = slot + 1;
            let Some((_, limiter)) = self.limiters.get_bucket(slot) else { continue };
            looked += 1;
            if limiter.is_idle() {
                if let Ok(entry) = self.limiters.get_bucket_entry(slot) {
                    entry.remove();
                }
                if full {
                    return;
                }
            }
            if looked == looks {
                return;
            }
        }
    }
}

impl<K, M> Select for Keyed<K, M>
where
    K: Hash + Eq + Clone,
    M: Meter,
{
    type Limiter = LocalLimiter<M>;

    fn select(&self, head: Head<'_>) -> Result<LocalLimiter<M>, Refusal> {
        self.limiter(&(self.shared.key)(head))
    }
}

impl<K, M: Meter> Clone for Keyed<K, M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K, M: Meter> fmt::Debug for Keyed<K, M> {
    // Keys may be secrets: tenants, or API keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("room", &self.shared.room.saturating_mul(SHARDS))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use super::*;
    use crate::{limit::TokenBucket, policy::Quota};

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    /// One permit, which comes back after an hour.
    fn hourly<K: Hash + Eq + Clone>(max_keys: usize) -> Keyed<K> {
        let quota = Quota::new(2, Duration::from_secs(3_600)).and_then(|quota| quota.with_burst(1)).unwrap();
        let make = move |_: &K| TokenBucket::new(quota);
        Keyed::with_max_keys(max_keys, |_| panic!("no request is sent here"), make)
    }

    fn takes<K: Hash + Eq + Clone>(keyed: &Keyed<K>, key: K) -> bool {
        keyed.limiter(&key).is_ok_and(|limiter| limiter.try_acquire(ONE).is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn no_key_that_owes_is_let_go_while_the_tables_grow() {
        let keyed = hourly(20_000);
        for key in 0..10_000 {
            assert!(takes(&keyed, key));
        }
        assert_eq!(keyed.len(), 10_000);
        assert!((0..10_000).all(|key| !takes(&keyed, key)), "each still owes its permit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_kept_once() {
        let keyed = hourly(16);
        let key: Arc<str> = Arc::from("tenant");
        assert!(takes(&keyed, Arc::clone(&key)));
        assert_eq!(Arc::strong_count(&key), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_only_idle_key_of_a_full_shard_is_found_in_one_round() {
        let keyed = hourly(16 * 500);
        let newcomers = (0..).filter(|key| keyed.shared.hasher.hash_one(key) >> 32 & 15 == 0);
        let mut newcomers = newcomers.take(1_000);
        let idle = newcomers.next().unwrap();
        keyed.limiter(&idle).unwrap();
        for key in newcomers.by_ref().take(499) {
            keyed.limiter(&key).unwrap().try_acquire(ONE).unwrap();
            // Looked at while there was room, and let go: put back.
            keyed.limiter(&idle).unwrap();
        }
        assert_eq!(keyed.len(), 500);
        let tries = newcomers.position(|key| takes(&keyed, key)).unwrap();
        assert!(tries <= 500 / LOOKS_IF_FULL + 1, "{tries}");
        assert_eq!(keyed.len(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_has_gone_is_let_go_by_as_many_newcomers() {
        const CROWD: u32 = 16_000;
        let keyed = hourly(2 * CROWD as usize);
        assert!((0..CROWD).all(|key| takes(&keyed, key)));
        for key in CROWD..2 * CROWD {
            tokio::time::advance(Duration::from_secs(3_600)).await;
            assert!(takes(&keyed, key));
        }
        // A round through the slots that the crowd has left takes an eighth as many newcomers.
        assert!(keyed.len() <= CROWD as usize / 6, "{}", keyed.len());
    }
}
