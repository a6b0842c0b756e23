//! Keys that change while they are used.

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

use super::{dice::Dice, ledger::write};

/// Both ends are the same in all keys, so that a search for the one finds them all.
const BEGIN: &str = "k3yOfTheSoakThatN0body";
const END: &str = "MaySeeAnywh3reAtAllEnd";

pub(crate) fn text(site: usize, number: u64) -> String {
    format!("{BEGIN}.{site}.{number}.{END}")
}

/// One site's keys: the newest is the one that its server takes.
pub(crate) struct Vault {
    site: usize,
    seed: u64,
    newest: AtomicU64,
    asked: AtomicU64,
    file: Option<Mutex<PathBuf>>,
}

impl Vault {
    pub(crate) fn new(site: usize, seed: u64, in_file: bool) -> Arc<Self> {
        let file = in_file.then(|| {
            let name = format!("tower-outbound-soak-{}-{site}", std::process::id());
            Mutex::new(std::env::temp_dir().join(name))
        });
        let vault = Self { site, seed, newest: AtomicU64::new(0), asked: AtomicU64::new(0), file };
        vault.rotate();
        Arc::new(vault)
    }

    /// From here on only the new one is taken.
    pub(crate) fn rotate(&self) {
        let number = self.newest.fetch_add(1, SeqCst) + 1;
        if let Some(file) = &self.file {
            write(|| {
                let path = file.lock().unwrap();
                let new = path.with_extension("new");
                fs::write(&new, text(self.site, number)).unwrap();
                fs::rename(&new, &*path).unwrap();
            });
        }
    }

    /// Whether this key is the newest; none is an answer when it is no key of this site's at all.
    pub(crate) fn takes(&self, key: &str) -> Option<bool> {
        let number =
            key.strip_prefix(&format!("{BEGIN}.{}.", self.site))?.strip_suffix(&format!(".{END}"))?;
        Some(number.parse::<u64>().ok()? == self.newest.load(SeqCst))
    }

    pub(crate) fn keys(self: &Arc<Self>) -> KeySource {
        if let Some(file) = &self.file {
            return KeySource::from_file_every(&*file.lock().unwrap(), Duration::from_millis(20)).unwrap();
        }
        let vault = Arc::clone(self);
        let provider = move || {
            let vault = Arc::clone(&vault);
            async move {
                let number = vault.asked.fetch_add(1, SeqCst);
                let mut dice = Dice::about(vault.seed, "key", number << 8 | vault.site as u64);
                tokio::time::sleep(dice.millis(0, 30)).await;
                if dice.chance(100) {
                    return Err(BoxError::from("the vault is shut"));
                }
                let key = ApiKey::new(text(vault.site, vault.newest.load(SeqCst)))?;
                Ok(FreshKey::new(key).with_lifetime(dice.millis(200, 2_000)))
            }
        };
        let backoff = ExponentialBackoff::new(Duration::from_millis(5), Duration::from_millis(50)).unwrap();
        RefreshingKey::new(provider).with_backoff(backoff).into()
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(&*file.lock().unwrap());
        }
    }
}
