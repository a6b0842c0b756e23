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
    /// Held while the file is read, so that no read replaces the result of a later one.
    reading: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    key: ApiKey,
    /// `None` before the first request, whose clock counts.
    next_read: Option<Instant>,
    rejected: Option<Instant>,
    error: Option<KeyError>,
}

impl WatchedFile {
    pub(super) fn open(path: PathBuf, interval: Duration) -> Result<Self, InvalidConfig> {
        let state = State { key: ApiKey::from_file(&path)?, next_read: None, rejected: None, error: None };
        Ok(Self { path, interval, reading: Mutex::default(), state: Mutex::new(state) })
    }

    // A panic while the lock was held leaves usable values behind.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn current(&self) -> ApiKey {
        let now = clock::now();
        let mut state = self.lock();
        if state.next_read.is_some_and(|next| now < next) {
            return state.key.clone();
        }
        let _reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(TryLockError::Poisoned(reading)) => reading.into_inner(),
            // No request waits for another one's read.
            Err(TryLockError::WouldBlock) => return state.key.clone(),
        };
        state.next_read = Some(clock::after(now, self.interval));
        drop(state);
        self.read()
    }

    /// Returns whether the file contains another key than this one.
    pub(super) fn reject(&self, key: &ApiKey) -> bool {
        // Rejected requests wait for the read of the first of them.
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        let mut state = self.lock();
        let recently = state.rejected.is_some_and(|then| now < clock::after(then, AFTER_REJECTION));
        if state.key != *key || recently {
            return state.key != *key;
        }
        state.rejected = Some(now);
        state.next_read = Some(clock::after(now, self.interval));
        drop(state);
        let replaced = self.read() != *key;
        if replaced {
            telemetry::key_refused();
        }
        replaced
    }

    pub(super) fn last_error(&self) -> Option<KeyError> {
        self.lock().error.clone()
    }

    /// Reads the file and returns the key in use. Does not hold the lock of the state meanwhile.
    fn read(&self) -> ApiKey {
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
