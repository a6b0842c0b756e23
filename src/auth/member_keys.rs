//! The key source of a pool's member.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{ApiKey, KeySource};
use crate::{
    clock::{self, Instant},
    policy::ExponentialBackoff,
    random::Random,
    telemetry,
};

/// A key source that has failed while the server rejects its key and it has no other key.
pub(super) struct MemberKeys {
    pub(super) keys: KeySource,
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
    pub(super) fn new(keys: KeySource) -> Self {
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
    pub(super) fn is_rejected(&self) -> bool {
        self.is_rejected.load(Relaxed)
    }

    pub(super) fn has_failed(&self) -> bool {
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
    pub(super) fn choose(&self) {
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
    pub(super) fn reject(&self, key: &ApiKey) -> bool {
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
    pub(super) fn accept(&self, key: &ApiKey) {
        if !self.is_rejected() {
            return;
        }
        let rejected = self.lock();
        if rejected.as_ref().is_some_and(|rejected| rejected.key == *key && rejected.probes > 0) {
            self.forget(rejected);
        }
    }
}
