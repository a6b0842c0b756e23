use std::{
    fmt, fs,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, SystemTime},
};

use super::{ApiKey, CurrentKey, KeyError, key_error::What};
use crate::{
    clock::{self, Instant},
    error::InvalidConfig,
    telemetry,
};

/// A key in a file, such as a mounted secret, which is read again when the file changes.
///
/// The request that comes first after the interval looks at the file's metadata, and reads the file when they differ:
/// up to 64 KiB, on the spot, as nothing in this crate runs in the background. A file that has vanished or holds no
/// key leaves the key in use as it is; [`KeySource::last_error`](super::KeySource::last_error) and an event say so. A server's
/// 401 makes it look at once, though not twice within [`AFTER_REFUSAL`](Self::AFTER_REFUSAL).
pub struct KeyFile {
    path: PathBuf,
    interval: Duration,
    key: ApiKey,
    stamp: Option<Stamp>,
}

impl KeyFile {
    /// Far shorter than what kubelet takes to bring a changed secret, up to a minute and a half.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
    /// Many requests are refused together when a key is withdrawn.
    pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);

    /// Reads the file, as [`ApiKey::from_file`] does.
    ///
    /// # Errors
    ///
    /// When the file can't be read or what it holds is no key; the error names the file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, InvalidConfig> {
        let path = path.into();
        let stamp = Stamp::of(&path).ok().flatten();
        let key = ApiKey::from_file(&path)?;
        Ok(Self { path, interval: Self::DEFAULT_INTERVAL, key, stamp })
    }

    /// The file is looked at no more often than this. [5 s](Self::DEFAULT_INTERVAL) by default.
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile")
            .field("path", &self.path)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// What tells one content of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    len: u64,
    /// A mounted secret is changed by swapping a link, and whoever copies a file may copy its time.
    #[cfg(unix)]
    inode: (u64, u64, i64, i64),
}

impl Stamp {
    /// As coarse as the clock of any file system in use.
    const TICK: Duration = Duration::from_secs(2);

    /// None when the file may change once more without its stamp showing it.
    fn of(path: &std::path::Path) -> std::io::Result<Option<Self>> {
        let metadata = fs::metadata(path)?;
        let modified = metadata.modified()?;
        let settled = modified.checked_add(Self::TICK).is_some_and(|settled| settled <= clock::wall());
        Ok(settled.then(|| Self {
            modified,
            len: metadata.len(),
            #[cfg(unix)]
            inode: {
                use std::os::unix::fs::MetadataExt;
                (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
            },
        }))
    }
}

/// A [`KeyFile`] in use.
pub(super) struct Watched {
    path: PathBuf,
    interval: Duration,
    /// Held by the one who looks at the file: what an earlier look has found never replaces what a later one did.
    looking: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    current: CurrentKey,
    stamp: Option<Stamp>,
    /// None before the first request, whose clock is the one that counts.
    next_look: Option<Instant>,
    refused: Option<Instant>,
    failed: Option<KeyError>,
}

impl Watched {
    pub(super) fn new(KeyFile { path, interval, key, stamp }: KeyFile) -> Self {
        let current = CurrentKey::new(key, 0);
        let state = State { current, stamp, next_look: None, refused: None, failed: None };
        Self { path, interval, looking: Mutex::default(), state: Mutex::new(state) }
    }

    /// Nothing can be half done under this lock, so that a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a look at the file.
    pub(super) fn known(&self) -> CurrentKey {
        self.lock().current.clone()
    }

    pub(super) fn current(&self) -> CurrentKey {
        let now = clock::now();
        let mut state = self.lock();
        if state.next_look.is_some_and(|next| now < next) {
            return state.current.clone();
        }
        let _looking = match self.looking.try_lock() {
            Ok(looking) => looking,
            Err(TryLockError::Poisoned(looking)) => looking.into_inner(),
            // Nobody waits for another's look.
            Err(TryLockError::WouldBlock) => return state.current.clone(),
        };
        state.next_look = Some(clock::after(now, self.interval));
        let stamp = state.stamp;
        drop(state);
        self.look(stamp);
        self.known()
    }

    /// Whether the file holds another key than this one.
    pub(super) fn reject(&self, key: &CurrentKey) -> bool {
        // But for those who were refused: they want to know what the one of them who looks finds.
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        let mut state = self.lock();
        let recently = |then: Instant| now < clock::after(then, KeyFile::AFTER_REFUSAL);
        if state.current.generation() == key.generation() && !state.refused.is_some_and(recently) {
            state.refused = Some(now);
            state.next_look = Some(clock::after(now, self.interval));
            drop(state);
            self.look(None);
            state = self.lock();
            if state.current.generation() != key.generation() {
                drop(state);
                telemetry::key_refused();
                return true;
            }
        }
        state.current.generation() != key.generation()
    }

    pub(super) fn last_error(&self) -> Option<KeyError> {
        self.lock().failed.clone()
    }

    /// Reads the file unless it looks as it did. The lock is not held meanwhile.
    fn look(&self, before: Option<Stamp>) {
        let stamp = Stamp::of(&self.path);
        if matches!(&stamp, Ok(Some(stamp)) if before == Some(*stamp)) {
            return;
        }
        let read = ApiKey::from_file(&self.path);
        let mut state = self.lock();
        match read {
            Ok(key) => {
                // The stamp was taken first: what changed since differs from it.
                state.stamp = stamp.ok().flatten();
                state.failed = None;
                if key != *state.current.key() {
                    state.current = CurrentKey::new(key, state.current.generation() + 1);
                    drop(state);
                    telemetry::key_changed();
                }
            }
            Err(error) => {
                state.stamp = None;
                let error = KeyError::caused(What::File, error);
                // Said once, and not at every look.
                let known = state.failed.replace(error.clone()).is_some();
                drop(state);
                if !known {
                    telemetry::key_refresh_failed(&error, error.retry_in(), true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_not_read_again_while_its_stamp_is_settled_and_the_same() {
        let path = std::env::temp_dir().join(format!("tower-outbound-stamp-{}", std::process::id()));
        fs::write(&path, "read").unwrap();
        let fresh = Stamp::of(&path).unwrap();
        tokio::time::advance(Duration::from_secs(3)).await;
        let settled = Stamp::of(&path).unwrap();
        let held = |stamp| {
            let key = ApiKey::new("held").unwrap();
            let interval = KeyFile::DEFAULT_INTERVAL;
            Watched::new(KeyFile { path: path.clone(), interval, key, stamp }).current().key().clone()
        };
        assert_eq!(held(settled).expose(), "held");
        assert_eq!((fresh, held(fresh).expose()), (None, "read"), "it may change within a tick of its clock");
        fs::remove_file(&path).unwrap();
    }
}
