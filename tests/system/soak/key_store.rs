//! Keys that are rotated while requests use them.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tower_outbound::{
    ApiKey, BoxError, ExponentialBackoff,
    auth::{FreshKey, KeySource, RefreshingKey},
};

use super::{history::uncounted, rng::Rng};

/// All keys start and end with the same text, so that a search for one key finds every key.
const BEGIN: &str = "k3yOfTheSoakThatN0body";
const END: &str = "MaySeeAnywh3reAtAllEnd";

pub(crate) fn key_text(api: usize, number: u64) -> String {
    format!("{BEGIN}.{api}.{number}.{END}")
}

/// The result of the server's check of a key. The server accepts only `Current`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum KeyStatus {
    Current,
    Revoked,
    /// Not a key of this API.
    Foreign,
}

/// The keys of one API. The server of the API accepts only the newest key.
pub(crate) struct KeyStore {
    api: usize,
    seed: u64,
    newest: AtomicU64,
    refreshes: AtomicU64,
    file: Option<Mutex<PathBuf>>,
}

impl KeyStore {
    pub(crate) fn new(api: usize, seed: u64, in_file: bool) -> Arc<Self> {
        let file = in_file.then(|| {
            let name = format!("tower-outbound-soak-{}-{api}", std::process::id());
            Mutex::new(std::env::temp_dir().join(name))
        });
        let keys = Self { api, seed, newest: AtomicU64::new(0), refreshes: AtomicU64::new(0), file };
        keys.rotate();
        Arc::new(keys)
    }

    /// Creates a new key and revokes all others.
    pub(crate) fn rotate(&self) {
        let number = self.newest.fetch_add(1, SeqCst) + 1;
        if let Some(file) = &self.file {
            uncounted(|| {
                let path = file.lock().unwrap();
                let new = path.with_extension("new");
                fs::write(&new, key_text(self.api, number)).unwrap();
                fs::rename(&new, &*path).unwrap();
            });
        }
    }

    pub(crate) fn status(&self, key: &str) -> KeyStatus {
        let number = key
            .strip_prefix(&format!("{BEGIN}.{}.", self.api))
            .and_then(|key| key.strip_suffix(&format!(".{END}")))
            .and_then(|number| number.parse::<u64>().ok());
        match number {
            Some(number) if number == self.newest.load(SeqCst) => KeyStatus::Current,
            Some(_) => KeyStatus::Revoked,
            None => KeyStatus::Foreign,
        }
    }

    /// Returns a source that reads the keys from the file, or from a provider that sometimes fails.
    pub(crate) fn source(self: &Arc<Self>) -> KeySource {
        if let Some(file) = &self.file {
            return KeySource::from_file_every(&*file.lock().unwrap(), Duration::from_millis(20)).unwrap();
        }
        let keys = Arc::clone(self);
        let provider = move || {
            let keys = Arc::clone(&keys);
            async move {
                let number = keys.refreshes.fetch_add(1, SeqCst);
                let mut rng = Rng::new(keys.seed, "key", number << 8 | keys.api as u64);
                tokio::time::sleep(rng.millis(0, 30)).await;
                if rng.chance(100) {
                    return Err(BoxError::from("the key store is unavailable"));
                }
                let key = ApiKey::new(key_text(keys.api, keys.newest.load(SeqCst)))?;
                Ok(FreshKey::new(key).with_lifetime(rng.millis(200, 2_000)))
            }
        };
        let backoff = ExponentialBackoff::new(Duration::from_millis(5), Duration::from_millis(50)).unwrap();
        RefreshingKey::new(provider).with_backoff(backoff).into()
    }
}

impl Drop for KeyStore {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(&*file.lock().unwrap());
        }
    }
}
