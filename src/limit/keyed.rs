use std::{
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
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
/// - The limiter of a key takes about 125 bytes beyond the key. Its first grant adds 400 to 470 bytes, or 870 if it is
///   adaptive. A window also stores its grants, with 16 to 32 bytes for each. A key that has used up 100 per minute
///   takes 2.6 KB, or 3.0 KB if it is adaptive. The first refusal adds about 600 bytes.
/// - A key that is no longer used takes this memory until it is removed.
/// - A key is idle if its quota is fully available, no request waits for its permits, none is in flight under a
///   [limit](LocalLimiter::with_max_in_flight), none became [unconfirmed](super::Permit) in the last 10 s, no server
///   limit applies to it, and its quotas are those with which `make` now creates its limiter.
///   [`set_quotas`](LocalLimiter::set_quotas) with other quotas therefore keeps the key in use. If most keys have their
///   own quotas, let `make` create the limiters with them.
/// - The table has 16 parts. Adding a key removes idle keys of its part, and so does every 256th lookup of known keys in
///   a part. No background task runs, and a key in use is never removed. The next request of a removed key creates a new
///   limiter, which counts its permits from 0 and has learned no rate. To keep a limiter, keep a clone of it.
/// - A request with a new key is refused if keys in use take up all the room.
/// - A server limit, such as a daily quota that resets at midnight, keeps its key in use until the reset. In that case,
///   set the maximum to the number of different keys in a day.
/// - If all room is taken, up to 64 keys are checked for idleness for each new key. If all of these are in use, the key
///   is refused, even if others are idle. The check for the next new key continues after them.
/// - Of the checked keys whose quotas were changed, at most eight are compared with the quotas of `make`.
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
    /// The number of keys in all shards.
    keys: AtomicUsize,
    /// The largest number of keys.
    room: usize,
    hasher: RandomState,
}

const SHARDS: usize = 16;

/// How many keys are checked for idleness when a new key is added, and at some lookups of known keys. Two checks for
/// each new key remove idle keys faster than new keys arrive.
const CHECKED_KEYS: usize = 2;

/// How many keys are checked for idleness before a new key is refused. The check for the next new key continues after
/// these keys.
const CHECKED_KEYS_IF_FULL: usize = 64;

/// At most this many keys with changed quotas are compared with their new limiters when a new key is added.
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
    /// How many known keys were looked up. Every 256th lookup removes idle keys, so that the memory of keys that are no
    /// longer used is freed if no key is added. More frequent checks would make a lookup slower, because a checked key
    /// is rarely in the CPU's cache.
    lookups: u8,
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

    /// Like [`new`](Self::new), with room for `max_keys` keys, and for at least one.
    pub fn with_max_keys(
        max_keys: usize,
        key: impl Fn(RequestHead<'_>) -> K + Send + Sync + 'static,
        make: impl Fn(&K) -> LocalLimiter + Send + Sync + 'static,
    ) -> Self {
        let shard =
            || Mutex::new(Shard { limiters: HashTable::new(), next_slot: 0, setups: Vec::new(), lookups: 0 });
        Self {
            shared: Arc::new(Shared {
                key: Box::new(key),
                make: Box::new(make),
                shards: std::array::from_fn(|_| shard()),
                keys: AtomicUsize::new(0),
                room: max_keys.max(1),
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
    /// Returns a refusal if `key` is new, all room is taken and none of the checked keys is idle.
    pub fn limiter(&self, key: &K) -> Result<LocalLimiter, Refusal> {
        let (hash, index) = self.shared.place(key);
        let mut made: Option<LocalLimiter> = None;
        loop {
            let mut shard = self.shared.shard(index);
            if let Some((_, limiter)) = shard.limiters.find(hash, |(known, _)| known == key) {
                let limiter = limiter.clone();
                shard.lookups = shard.lookups.wrapping_add(1);
                if shard.lookups == 0 {
                    self.shared.tidy(&mut shard);
                }
                return Ok(limiter);
            }
            if let Some(limiter) = made.take().filter(|_| self.shared.take_room()) {
                let limiter = limiter.for_key(&mut shard.setups);
                let entry = (key.clone(), limiter.clone());
                shard.limiters.insert_unique(hash, entry, |(key, _)| self.shared.hasher.hash_one(key));
                return Ok(limiter);
            }
            let changed = self.shared.remove_idle(&mut shard, index);
            let is_full = self.shared.is_full();
            drop(shard);
            // `make` runs outside the lock, because it may block, or wait for a caller of this method.
            if !self.shared.remove_changed(&changed, is_full) && is_full {
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
        self.shared.keys.load(Relaxed)
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

    fn is_full(&self) -> bool {
        self.keys.load(Relaxed) >= self.room
    }

    /// Takes room for one more key. Returns `false` if the limiter is full.
    fn take_room(&self) -> bool {
        let add = |keys| (keys < self.room).then_some(keys + 1);
        self.keys.fetch_update(Relaxed, Relaxed, add).is_ok()
    }
}

impl<K: Hash + Eq + Clone> Shared<K> {
    /// Returns the hash of a key, and the index of its shard.
    fn place(&self, key: &K) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        // Uses bits in the middle of the hash, because the table itself uses the lowest and the highest bits.
        (hash, (hash >> 32) as usize % SHARDS)
    }

    /// Removes idle keys of a shard to which no key is added.
    #[cold]
    fn tidy(&self, shard: &mut Shard<K>) {
        let removed = shard.remove_idle(CHECKED_KEYS, false, &mut Vec::new());
        self.keys.fetch_sub(removed, Relaxed);
    }

    /// Removes idle keys of the new key's shard. If all room is taken, removes one, also from another shard if this one
    /// has few keys. Returns the keys that are idle if their changed quotas are those of their new limiters.
    fn remove_idle(&self, own: &mut Shard<K>, index: usize) -> Vec<K> {
        let is_full = self.is_full();
        let mut checks = if is_full { CHECKED_KEYS_IF_FULL } else { CHECKED_KEYS };
        let mut changed = Vec::new();
        let mut remove = |shard: &mut Shard<K>| {
            let removed = shard.remove_idle(checks, is_full, &mut changed);
            self.keys.fetch_sub(removed, Relaxed);
            checks = checks.saturating_sub(shard.limiters.len());
            removed > 0 || checks == 0
        };
        if !remove(own) && is_full {
            // Skips a shard that another thread has locked, because this thread holds the lock of its own.
            let others = (1..SHARDS).map(|step| self.shards[(index + step) % SHARDS].try_lock());
            others.flatten().any(|mut shard| remove(&mut shard));
        }
        changed
    }

    /// Removes those of the keys that are idle and have the quotas of their new limiters, or only the first of them.
    /// Returns whether any was.
    fn remove_changed(&self, keys: &[K], only_first: bool) -> bool {
        let is_removed = |key: &&K| {
            let quotas = (self.make)(key).quotas();
            let (hash, index) = self.place(key);
            let mut shard = self.shard(index);
            let entry = shard.limiters.find_entry(hash, |(known, _)| known == *key).ok();
            let is_idle = |limiter: &LocalLimiter| limiter.is_idle() && limiter.quotas() == quotas;
            entry.filter(|entry| is_idle(&entry.get().1)).map(|entry| entry.remove()).is_some()
        };
        let most = if only_first { 1 } else { MOST_CHANGED };
        let removed = keys.iter().take(MOST_CHANGED).filter(is_removed).take(most).count();
        self.keys.fetch_sub(removed, Relaxed);
        removed > 0
    }
}

impl<K: Clone> Shard<K> {
    /// Checks up to `checks` keys and removes the idle ones, or only the first of them. Returns their number. Adds the
    /// keys that are idle if their changed quotas are those of their new limiters.
    fn remove_idle(&mut self, checks: usize, only_first: bool, changed: &mut Vec<K>) -> usize {
        let slots = self.limiters.num_buckets();
        let (mut checked, mut removed) = (0, 0);
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
                    removed += 1;
                    if only_first {
                        break;
                    }
                }
            }
            if checked == checks {
                break;
            }
        }
        removed
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
        f.debug_struct("Keyed").field("room", &self.shared.room).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
