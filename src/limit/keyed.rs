use std::{
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hashbrown::HashTable;

use super::{
    limiter::{PermitRequest, SelectLimiter},
    local_limiter::LocalLimiter,
    shell::{Setup, acquire::Acquire},
};
use crate::{
    call::RequestHead,
    error::{Reason, Refusal},
};

/// A limiter for each key, such as a host, a tenant or an API key.
///
/// ```
/// use tower_outbound::{Quota, limit::{Keyed, RateLimitLayer, LocalLimiter}};
///
/// let quota = Quota::per_minute(100)?;
/// let by_host = Keyed::new(
///     |head| head.uri.host().unwrap_or_default().to_owned(),
///     move |_host| LocalLimiter::token_bucket(quota),
/// );
/// let layer = RateLimitLayer::new(by_host);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// The layer computes the key of each request from its [`RequestHead`]. Other code gets the limiter of a key from
/// [`limiter`](Self::limiter).
///
/// # Tenants
///
/// The [guide](crate::guide::tenants) adds a key for each tenant and a quota of all tenants.
///
/// ```
/// use std::convert::Infallible;
///
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_outbound::{
///     ApiKey, BoxError, Quota,
///     call::RequestHead,
///     limit::{Keyed, LocalLimiter},
///     preset, stack::StackLayer,
/// };
///
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// /// A client of one service for many tenants. Each tenant has its own quota.
/// struct Rates {
///     limiters: Keyed<String>,
///     layer: StackLayer,
/// }
///
/// impl Rates {
///     fn new(key: ApiKey) -> Result<Self, BoxError> {
///         let tenant = |head: RequestHead<'_>| {
///             head.extensions.get().map_or_else(String::new, |Tenant(name)| name.clone())
///         };
///         let quota = Quota::per_minute(100)?;
///         let limiters = Keyed::new(tenant, move |_tenant| LocalLimiter::token_bucket(quota));
///         let rates = preset::currency_rates("https://rates.example.com")?.with_api_key(key);
///         let layer = rates.with_limiter(limiters.clone()).layer()?;
///         Ok(Self { limiters, layer })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// let rates = Rates::new(ApiKey::new("s3cret")?)?;
/// let client = rates.layer.layer(service_fn(|_| async {
///     Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
/// }));
///
/// let request = Request::get("https://rates.example.com/v1/latest");
/// let request = request.extension(Tenant("a".to_owned())).body(Empty::<bytes::Bytes>::new())?;
/// client.oneshot(request).await?;
/// assert_eq!(rates.limiters.limiter(&"a".to_owned())?.snapshot().granted, 1);
/// assert_eq!(rates.limiters.limiter(&"b".to_owned())?.snapshot().granted, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Default
///
/// At most 100,000 keys.
///
/// # Memory
///
/// - The limiter of a key takes about 130 bytes beyond the key. Its first grant adds about 450 bytes, and 16 bytes for
///   each logged permit of a paced or sliding window.
/// - A key is idle if its quota is fully available, no request waits for its permits, none is in flight under a
///   [limit](LocalLimiter::with_max_in_flight), no server limit applies to it, and its quotas are those with which
///   `make` now creates its limiter. [`set_quotas`](LocalLimiter::set_quotas) with other quotas therefore keeps the key
///   in use. If most keys have their own quotas, let `make` create the limiters with them.
/// - Adding a key removes idle keys. No background task runs, and a key in use is never removed.
/// - A request with a new key is refused if keys in use take up all the room.
/// - A server limit, such as a daily quota that resets at midnight, keeps its key in use until the reset. In that case,
///   set the maximum to the number of different keys in a day.
/// - The room is divided evenly among 16 shards, and the key's hash selects the shard. A full shard refuses new keys,
///   even if other shards have room.
///
/// # Clone
///
/// All clones share the limiters.
#[derive(Clone)]
pub struct Keyed<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    key: Box<dyn Fn(RequestHead<'_>) -> K + Send + Sync>,
    make: Box<dyn Fn(&K) -> LocalLimiter + Send + Sync>,
    /// The key's hash selects the shard. Keys of different shards do not contend for a lock.
    shards: [Mutex<Shard<K>>; SHARDS],
    /// The largest number of keys in each shard.
    room: usize,
    hasher: RandomState,
}

const SHARDS: usize = 16;

/// How many keys are checked for idleness when a new key is added. Two checks for each new key remove idle keys faster
/// than new keys arrive.
const CHECKED_KEYS: usize = 2;

/// How many keys are checked for idleness before a full shard refuses a new key. The check for the next new key
/// continues after these keys.
const CHECKED_KEYS_IF_FULL: usize = 64;

/// For how many keys with changed quotas `make` is called when a new key is added.
const MOST_CHANGED: usize = 8;

/// At most this many table slots are visited for each key to check. Without this limit, a search would take long in a
/// table of mostly empty slots, such as after most keys were removed.
const SLOTS_PER_CHECK: usize = 8;

struct Shard<K> {
    limiters: HashTable<(K, LocalLimiter)>,
    /// The table slot to check next for an idle key. Iterating over the slots needs no second list of the keys. Growing
    /// the table moves the keys, so some are checked too early and some too late.
    next_slot: usize,
    /// The setups that limiters of the shard with the same quota share.
    setups: Vec<Arc<Setup>>,
}

impl<K> Keyed<K>
where
    K: Hash + Eq + Clone,
{
    /// Creates keyed limiters. `key` computes the key of a request, and `make` creates the limiter of a new key.
    ///
    /// `key` must always return the same key for the same request. The layer calls `key` again if the request's permit
    /// expires before the inner service is ready.
    ///
    /// `make` runs without a lock of the `Keyed`, in [`limiter`](Self::limiter) or in the first poll of a request. If
    /// two threads add a key at once, the limiter of one is dropped. `make` is also called for up to eight keys whose
    /// quotas [`set_quotas`](LocalLimiter::set_quotas) has changed, before they are removed.
    pub fn new(
        key: impl Fn(RequestHead<'_>) -> K + Send + Sync + 'static,
        make: impl Fn(&K) -> LocalLimiter + Send + Sync + 'static,
    ) -> Self {
        Self::with_max_keys(100_000, key, make)
    }

    /// Like [`new`](Self::new), with room for `max_keys` keys, rounded up to a multiple of 16.
    pub fn with_max_keys(
        max_keys: usize,
        key: impl Fn(RequestHead<'_>) -> K + Send + Sync + 'static,
        make: impl Fn(&K) -> LocalLimiter + Send + Sync + 'static,
    ) -> Self {
        let shard = || Mutex::new(Shard { limiters: HashTable::new(), next_slot: 0, setups: Vec::new() });
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

    /// Identifies the limiters: all clones have the same id.
    #[cfg(feature = "client")]
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Returns the limiter of `key`, and creates it if it does not exist.
    ///
    /// The key stays in use as long as a clone of its limiter exists. The caller must hold no lock that `make` takes.
    ///
    /// # Errors
    ///
    /// Returns a refusal if `key` is new, its shard is full and none of the shard's checked keys is idle.
    pub fn limiter(&self, key: &K) -> Result<LocalLimiter, Refusal> {
        let hash = self.shared.hasher.hash_one(key);
        // Uses bits in the middle of the hash, because the table itself uses the lowest and the highest bits.
        let index = (hash >> 32) as usize % SHARDS;
        let room = self.shared.room;
        let mut made: Option<LocalLimiter> = None;
        loop {
            let mut shard = self.shared.shard(index);
            if let Some((_, limiter)) = shard.limiters.find(hash, |(known, _)| known == key) {
                return Ok(limiter.clone());
            }
            if let Some(limiter) = made.take().filter(|_| shard.limiters.len() < room) {
                let limiter = limiter.for_key(&mut shard.setups);
                let entry = (key.clone(), limiter.clone());
                shard.limiters.insert_unique(hash, entry, |(key, _)| self.shared.hasher.hash_one(key));
                return Ok(limiter);
            }
            let changed = shard.remove_idle(room);
            let is_full = shard.limiters.len() >= room;
            drop(shard);
            // `make` runs outside the lock, because it may block, or wait for a caller of this method.
            if !self.shared.remove_changed(index, &changed) && is_full {
                return Err(Refusal::new(Reason::TooManyKeys, None));
            }
            made = Some((self.shared.make)(key));
        }
    }

    /// Returns the limiter of a request.
    pub(super) fn limiter_of(&self, head: RequestHead<'_>) -> Result<LocalLimiter, Refusal> {
        self.limiter(&(self.shared.key)(head))
    }
}

impl<K> Keyed<K> {
    /// Returns the current number of keys.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|shard| self.shared.shard(shard).limiters.len()).sum()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Shared<K> {
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard<K>> {
        // Ignores poisoning, because a panic in the code of the key type leaves the table consistent.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Shared<K> {
    /// Removes those of the keys that are idle and have the quotas of their new limiters. Returns whether any was.
    fn remove_changed(&self, index: usize, keys: &[K]) -> bool {
        let is_removed = |key: &&K| {
            let quotas = (self.make)(key).quotas();
            let mut shard = self.shard(index);
            let entry = shard.limiters.find_entry(self.hasher.hash_one(key), |(known, _)| known == *key).ok();
            let is_idle = |limiter: &LocalLimiter| limiter.is_idle() && limiter.quotas() == quotas;
            entry.filter(|entry| is_idle(&entry.get().1)).map(|entry| entry.remove()).is_some()
        };
        keys.iter().take(MOST_CHANGED).filter(is_removed).count() > 0
    }
}

impl<K: Clone> Shard<K> {
    /// Removes the idle ones of the next keys. In a full shard, stops after the first idle key. Returns the keys that
    /// are idle if their changed quotas are those of their new limiters.
    fn remove_idle(&mut self, room: usize) -> Vec<K> {
        let (full, slots) = (self.limiters.len() >= room, self.limiters.num_buckets());
        let checks = if full { CHECKED_KEYS_IF_FULL } else { CHECKED_KEYS };
        let (mut checked, mut changed) = (0, Vec::new());
        for _ in 0..slots.min(checks * SLOTS_PER_CHECK) {
            let slot = self.next_slot % slots;
            self.next_slot = slot + 1;
            let Some((key, limiter)) = self.limiters.get_bucket(slot) else { continue };
            checked += 1;
            if limiter.is_idle() {
                if limiter.has_changed_quotas() {
                    changed.push(key.clone());
                } else if let Ok(entry) = self.limiters.get_bucket_entry(slot) {
                    entry.remove();
                    checked = if full { checks } else { checked };
                }
            }
            if checked == checks {
                break;
            }
        }
        changed
    }
}

impl<K> SelectLimiter for Keyed<K>
where
    K: Hash + Eq + Clone,
{
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        match self.limiter_of(head) {
            Ok(limiter) => Acquire::of(limiter.shared, *request),
            Err(refusal) => Acquire::ready(Err(refusal)),
        }
    }
}

impl<K> fmt::Debug for Keyed<K> {
    // Does not write the keys, because they may be secrets, such as API keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("room", &self.shared.room.saturating_mul(SHARDS))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
