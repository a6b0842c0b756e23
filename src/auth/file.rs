use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

use super::{ApiKey, KeyError};
use crate::{
    clock::{self, Instant},
    config::InvalidConfig,
    telemetry,
};

/// The minimum interval between two reads after a 401, because many requests are rejected together.
const AFTER_REJECTION: Duration = Duration::from_secs(1);

/// A key file, read again at intervals.
pub(super) struct WatchedFile {
    path: PathBuf,
    interval: Duration,
    state: Mutex<State>,
    /// Held while the file is read: rejected requests wait for the result, others use the key that is there.
    reads: Mutex<Reads>,
}

struct State {
    key: ApiKey,
    error: Option<KeyError>,
}

#[derive(Default)]
struct Reads {
    /// `None` before the first request, whose clock counts.
    next: Option<Instant>,
    rejected: Option<Instant>,
}

impl WatchedFile {
    pub(super) fn open(path: PathBuf, interval: Duration) -> Result<Self, InvalidConfig> {
        let state = Mutex::new(State { key: ApiKey::from_file(&path)?, error: None });
        Ok(Self { path, interval, state, reads: Mutex::default() })
    }

    // A panic while the lock was held leaves usable values behind.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn current(&self) -> ApiKey {
        let now = clock::now();
        let mut reads = match self.reads.try_lock() {
            Ok(reads) => reads,
            Err(TryLockError::Poisoned(reads)) => reads.into_inner(),
            Err(TryLockError::WouldBlock) => return self.lock().key.clone(),
        };
        match reads.next.is_some_and(|next| now < next) {
            true => self.lock().key.clone(),
            false => self.read(&mut reads, now),
        }
    }

    /// Returns whether the file contains another key than this one.
    pub(super) fn reject(&self, key: &ApiKey) -> bool {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        let recently = reads.rejected.is_some_and(|then| now < clock::after(then, AFTER_REJECTION));
        let current = self.lock().key.clone();
        if current != *key || recently {
            return current != *key;
        }
        reads.rejected = Some(now);
        let replaced = self.read(&mut reads, now) != *key;
        if replaced {
            telemetry::key_refused();
        }
        replaced
    }

    pub(super) fn last_error(&self) -> Option<KeyError> {
        self.lock().error.clone()
    }

    /// Reads the file and returns the key in use. Does not hold the lock of the state meanwhile.
    fn read(&self, reads: &mut Reads, now: Instant) -> ApiKey {
        reads.next = Some(clock::after(now, self.interval));
        let read = ApiKey::from_file(&self.path);
        let mut state = self.lock();
        match read {
            Ok(key) => {
                state.error = None;
                if key != state.key {
                    state.key = key.clone();
                    drop(state);
                    telemetry::key_changed();
                }
                key
            }
            Err(error) => {
                let error = KeyError::new("the key file could not be read again").with_source(error);
                let is_new = state.error.replace(error.clone()).is_none();
                let key = state.key.clone();
                drop(state);
                if is_new {
                    telemetry::key_refresh_failed(&error, error.retry_in(), true);
                }
                key
            }
        }
    }
}
