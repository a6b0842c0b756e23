use std::{
    collections::{HashMap, VecDeque, hash_map::RandomState},
    fmt,
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Head, LocalLimiter, Reason, Refusal, Select, gcra::Gcra, meter::Meter};

/// A limiter for each key: host, tenant, API key, whatever is drawn from the request.
///
/// A key costs memory only while something is owed or awaited under it: whenever a key is added, others that are
/// idle, their quota whole again and nobody waiting, are let go. Nothing runs in the background, and no key that
/// still owes something is forgotten: when there is no room, a request under a new one is refused. The keys are
/// spread over 16 shards by their hash, each with a sixteenth of the room, so one may be full before all are.
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

struct Shard<K, M: Meter> {
    limiters: HashMap<K, LocalLimiter<M>>,
    /// Every key once, in the order in which they are looked at.
    round: VecDeque<K>,
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
        let shard = || Mutex::new(Shard { limiters: HashMap::new(), round: VecDeque::new() });
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
        let mut shard = self.shared.shard(hash as usize % SHARDS);
        if let Some(limiter) = shard.limiters.get(key) {
            return Ok(limiter.clone());
        }
        let room = self.shared.room;
        let looks = if shard.limiters.len() < room { LOOKS } else { LOOKS_IF_FULL };
        shard.let_idle_go(looks, room);
        if shard.limiters.len() >= room {
            return Err(Refusal::new(Reason::TooManyKeys, None));
        }
        let limiter = (self.shared.make)(key);
        shard.limiters.insert(key.clone(), limiter.clone());
        shard.round.push_back(key.clone());
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

impl<K: Hash + Eq, M: Meter> Shard<K, M> {
    /// Looks at so many keys, or until one place is free in a full shard.
    fn let_idle_go(&mut self, looks: usize, room: usize) {
        let full = self.limiters.len() >= room;
        for _ in 0..looks.min(self.round.len()) {
            let Some(key) = self.round.pop_front() else { return };
            if self.limiters.get(&key).is_some_and(LocalLimiter::is_idle) {
                self.limiters.remove(&key);
                if full {
                    return;
                }
            } else {
                self.round.push_back(key);
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
