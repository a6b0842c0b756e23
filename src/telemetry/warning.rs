//! Limits how often one kind of event is emitted at WARN, because thousands per second would hide other events.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::clock::{self, Instant};

/// The shortest time between two WARN events about refusals.
pub(super) const PERIOD: Duration = Duration::from_secs(10);

/// The time of the last WARN event of one kind, and the number of events since then.
#[derive(Debug, Default)]
pub(crate) struct LastWarning(Mutex<Option<(Instant, u64)>>);

impl LastWarning {
    /// Returns the number of events since the last WARN event, if the next event is a WARN event. Returns `None` and
    /// counts the event if the last WARN event is less than `period` ago.
    pub(super) fn replace(&self, period: Duration) -> Option<u64> {
        let now = clock::now();
        // A panic while the lock is held leaves the values valid.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some((at, since)) if now.saturating_duration_since(*at) < period => {
                *since += 1;
                None
            }
            last => Some(last.replace((now, 0)).map_or(0, |(_, since)| since)),
        }
    }
}

/// Whether a layer has emitted its WARN event about a wrong order of layers.
#[derive(Debug, Default)]
pub(crate) struct OrderWarning(AtomicBool);

impl OrderWarning {
    /// Emits the first event only.
    pub(super) fn once(&self, emit: impl FnOnce()) {
        if !self.0.swap(true, Ordering::Relaxed) {
            emit();
        }
    }
}
