use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    ApiKey, KeyError, RefreshingKey,
    refresh::{Lease, Refresher},
};
use crate::{
    clock::{self, Instant},
    config::InvalidConfig,
    policy::ExponentialBackoff,
    random::Random,
    telemetry,
};

/// The source of a key: a fixed value, a file, or a closure that fetches the key.
///
/// | created from | when the key is read | after a 401 |
/// |---|---|---|
/// | [`ApiKey`]: a value, an environment variable, a file | once | returns the 401, because the key is fixed |
/// | [`from_file`](Self::from_file) | when the source is created, and with the first request after each interval | reads the file immediately, at most once a second |
/// | [`RefreshingKey`] | with the first request, and ahead of the key's expiry | fetches another key |
///
/// ```
/// use tower_outbound::{ApiKey, auth::KeySource};
///
/// # fn make() -> Result<(), tower_outbound::InvalidConfig> {
/// let value = KeySource::from(ApiKey::from_env("RATES_KEY")?);
/// let file = KeySource::from_file("/run/secrets/rates")?;
/// # Ok(())
/// # }
/// ```
///
/// # Clone
///
/// All clones of a source share the key and its refresh.
#[derive(Clone)]
pub struct KeySource(Source);

#[derive(Clone)]
enum Source {
    Fixed(ApiKey),
    Refreshing(Arc<Refresher>),
    /// The source of a pool's member.
    Member(Arc<MemberKeys>),
}

impl KeySource {
    /// Creates the source of a pool's member. It also fails while the server rejects its key.
    pub(crate) fn of_member(keys: Self) -> Self {
        Self(Source::Member(Arc::new(MemberKeys::new(keys))))
    }

    /// The default interval of [`from_file`](Self::from_file): 5 s. This is short compared to the 90 s that a kubelet
    /// may take to update a mounted secret.
    pub const FILE_INTERVAL: Duration = Duration::from_secs(5);

    /// Creates a source that reads the key in the file at `path` now, and again every [5 s](Self::FILE_INTERVAL).
    ///
    /// The first request after each interval reads the file and blocks its thread meanwhile. The file may have up to 64
    /// KiB. If the file is missing or contains no valid key, the previous key stays in use, and the file is read again
    /// after 1 s. [`last_error`](Self::last_error) and a log event report the reason.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ApiKey::from_file`].
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, InvalidConfig> {
        Self::from_file_every(path, Self::FILE_INTERVAL)
    }

    /// Like [`from_file`](Self::from_file), with a custom interval.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ApiKey::from_file`].
    pub fn from_file_every(path: impl Into<PathBuf>, interval: Duration) -> Result<Self, InvalidConfig> {
        let refresher = Refresher::file(path.into(), interval)?;
        Ok(Self(Source::Refreshing(Arc::new(refresher))))
    }

    /// Returns the current key. If no key is valid, waits for a refresh.
    ///
    /// # Errors
    ///
    /// Returns an error if no key is valid and the refresh fails.
    ///
    /// # Cancellation
    ///
    /// Dropping the future does not stop the refresh.
    pub async fn current(&self) -> Result<ApiKey, KeyError> {
        match self.lease() {
            Ok(key) => key,
            Err(refresh) => refresh.await,
        }
    }

    /// Reports to the source that the server rejected `key`. Returns `true` if another key is available or is being
    /// fetched, so that a retry makes sense.
    ///
    /// Concurrent rejections of the same key cause one refresh. If the server rejects a key right after its refresh,
    /// the source does not refresh the key again before a delay has passed: see [`RefreshingKey::with_backoff`].
    pub fn reject(&self, key: &ApiKey) -> bool {
        match &self.0 {
            Source::Fixed(_) => false,
            Source::Refreshing(refresher) => refresher.reject(key),
            Source::Member(member) => member.reject(key),
        }
    }

    /// Records that the server accepted `key`.
    pub(super) fn accept(&self, key: &ApiKey) {
        if let Source::Member(member) = &self.0 {
            member.accept(key);
        }
    }

    /// Records that a request goes to the pool's member with this source.
    pub(crate) fn choose(&self) {
        if let Source::Member(member) = &self.0 {
            member.choose();
        }
    }

    /// Returns why the last refresh failed. Returns `None` if it succeeded.
    pub fn last_error(&self) -> Option<KeyError> {
        match &self.0 {
            Source::Fixed(_) => None,
            Source::Refreshing(refresher) => refresher.last_error(),
            Source::Member(member) => member.keys.last_error(),
        }
    }

    /// Returns whether no key is valid, and the last refresh failed. In a pool, also returns `true` while the server
    /// rejects the key.
    pub(crate) fn has_failed(&self) -> bool {
        match &self.0 {
            Source::Fixed(_) => false,
            Source::Refreshing(refresher) => refresher.has_failed(),
            Source::Member(member) => member.has_failed(),
        }
    }

    /// Returns whether the next request to the pool's member with this source is a probe.
    pub(crate) fn needs_probe(&self) -> bool {
        matches!(&self.0, Source::Member(member) if member.is_rejected())
    }

    /// Returns whether `key` is the current key. Returns `None` if no key is valid.
    fn holds(&self, key: &ApiKey) -> Option<bool> {
        match &self.0 {
            Source::Fixed(fixed) => Some(fixed == key),
            Source::Refreshing(refresher) => refresher.holds(key),
            Source::Member(member) => member.keys.holds(key),
        }
    }

    /// Returns the delays after the failures of a closure. `None` for a fixed key or a file.
    fn backoff(&self) -> Option<ExponentialBackoff> {
        match &self.0 {
            Source::Refreshing(refresher) => refresher.backoff(),
            Source::Fixed(_) | Source::Member(_) => None,
        }
    }

    pub(super) fn lease(&self) -> Lease {
        match &self.0 {
            Source::Fixed(key) => Ok(Ok(key.clone())),
            Source::Refreshing(refresher) => refresher.lease(),
            Source::Member(member) => member.keys.lease(),
        }
    }

    /// Returns the key if it is a fixed value.
    pub(super) fn fixed(&self) -> Option<&ApiKey> {
        match &self.0 {
            Source::Fixed(key) => Some(key),
            Source::Refreshing(_) => None,
            Source::Member(member) => member.keys.fixed(),
        }
    }
}

impl From<ApiKey> for KeySource {
    fn from(key: ApiKey) -> Self {
        Self(Source::Fixed(key))
    }
}

impl From<RefreshingKey> for KeySource {
    fn from(settings: RefreshingKey) -> Self {
        Self(Source::Refreshing(Arc::new(Refresher::new(settings))))
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.0 {
            Source::Fixed(_) => "value",
            Source::Refreshing(refresher) if refresher.is_file() => "file",
            Source::Refreshing(_) => "provider",
            Source::Member(member) => return member.keys.fmt(f),
        };
        f.debug_struct("KeySource").field("source", &source).finish_non_exhaustive()
    }
}

/// A key source that has failed while the server rejects its key and it has no other key.
struct MemberKeys {
    keys: KeySource,
    backoff: ExponentialBackoff,
    random: Random,
    /// Whether `rejected` has a key. Until the first rejection, no request takes the lock.
    is_rejected: AtomicBool,
    rejected: Mutex<Option<Rejected>>,
}

/// A key that the server has rejected, and has not accepted since.
struct Rejected {
    key: ApiKey,
    /// The number of probes that were sent with this key.
    probes: u32,
    /// When the next probe may be sent.
    until: Instant,
}

impl MemberKeys {
    fn new(keys: KeySource) -> Self {
        let backoff = keys.backoff().unwrap_or(ExponentialBackoff::throttled());
        let random = Random::from_entropy();
        Self { keys, backoff, random, is_rejected: AtomicBool::new(false), rejected: Mutex::default() }
    }

    // Ignores the poisoning of the lock, because a panic while the lock is held leaves the values usable.
    fn lock(&self) -> MutexGuard<'_, Option<Rejected>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the next probe may be sent.
    fn next_probe(&self, probes: u32, now: Instant) -> Instant {
        clock::after(now, self.backoff.delay(probes, self.random.next()))
    }

    fn forget(&self, mut rejected: MutexGuard<'_, Option<Rejected>>) {
        *rejected = None;
        self.is_rejected.store(false, Relaxed);
    }

    /// Returns whether the server has rejected the key, and has not accepted it since.
    fn is_rejected(&self) -> bool {
        self.is_rejected.load(Relaxed)
    }

    fn has_failed(&self) -> bool {
        self.keys.has_failed() || self.is_rejected() && self.rejects_requests()
    }

    /// Returns whether the server rejects the key, and no probe may be sent now.
    fn rejects_requests(&self) -> bool {
        let rejected = self.lock();
        let Some(Rejected { key, probes, until }) = &*rejected else { return false };
        match self.keys.holds(key) {
            Some(true) => clock::now() < *until,
            Some(false) => {
                self.forget(rejected);
                false
            }
            // A refresh may provide another key. After a probe, the last refresh has provided none.
            None => *probes > 0,
        }
    }

    /// Records that a request goes to the member. If the server rejects its key, this request is a probe, and the next
    /// one may be sent after a longer delay.
    fn choose(&self) {
        if !self.is_rejected() {
            return;
        }
        let now = clock::now();
        // During a refresh, the request waits for another key.
        let is_probe = |it: &&mut Rejected| it.until <= now && self.keys.holds(&it.key) == Some(true);
        if let Some(rejected) = self.lock().as_mut().filter(is_probe) {
            self.begin_probe(rejected, now);
        }
    }

    fn begin_probe(&self, rejected: &mut Rejected, now: Instant) {
        rejected.probes = rejected.probes.saturating_add(1);
        rejected.until = self.next_probe(rejected.probes, now);
    }

    /// Records that the server rejected `key`. Returns whether the source has another key, or fetches one.
    fn reject(&self, key: &ApiKey) -> bool {
        let is_replaced = self.keys.reject(key);
        let (mut rejected, now) = (self.lock(), clock::now());
        if let Some(known) = rejected.as_mut().filter(|rejected| rejected.key == *key) {
            // No probe was sent since its time, because the request waited for a refresh that has failed.
            if !is_replaced && known.until <= now {
                self.begin_probe(known, now);
            }
            return is_replaced;
        }
        if self.keys.holds(key) == Some(false) {
            return is_replaced;
        }
        *rejected = Some(Rejected { key: key.clone(), probes: 0, until: self.next_probe(0, now) });
        self.is_rejected.store(true, Relaxed);
        drop(rejected);
        if !is_replaced {
            telemetry::key_rejected();
        }
        is_replaced
    }

    /// Records that the server accepted `key`. Ignores the responses to requests that were sent before the rejection:
    /// most of them arrive before the first probe is sent.
    fn accept(&self, key: &ApiKey) {
        if !self.is_rejected() {
            return;
        }
        let rejected = self.lock();
        if rejected.as_ref().is_some_and(|rejected| rejected.key == *key && rejected.probes > 0) {
            self.forget(rejected);
        }
    }
}
