//! The state that all clones of a limiter share.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::{
    permits::{Permits, Store, TaskSignal},
    protocol::{Decide, Updates},
    settings::Settings,
};
use crate::{
    clock::{self, Instant},
    limit::{Learned, Permit, PermitIssuer, ResponseInfo, queue::external::Queue},
    policy::nanos,
    random::Random,
};

pub(super) struct Inner {
    pub(super) this: Weak<Self>,
    pub(super) queue: Arc<Queue<Permits>>,
    pub(super) signal: Arc<TaskSignal>,
    /// Whether a task that queries the store is running.
    pub(super) running: AtomicBool,
    pub(super) store: Box<dyn Decide>,
    pub(super) settings: Arc<Settings>,
    pub(super) random: Random,
}

impl Inner {
    pub(super) fn new(store: Box<dyn Decide>, settings: Arc<Settings>) -> Arc<Self> {
        let signal = Arc::new(TaskSignal::default());
        let (largest, interval) = (settings.largest(), settings.interval());
        let permits = Permits::new(largest, interval, settings.timeout, Arc::clone(&signal));
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            queue: Arc::new(Queue::external(permits, &settings.quotas)),
            signal,
            running: AtomicBool::new(false),
            store,
            settings,
            random: Random::from_entropy(),
        })
    }

    /// Applies `work` to the permits, then grants permits to the waiters.
    pub(super) fn update<T>(&self, work: impl FnOnce(&mut Permits, u64) -> T) -> T {
        self.queue.update(|permits| permits.store != Store::Shared, work)
    }

    pub(super) fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
        let wait = nanos(until.saturating_duration_since(clock::now()));
        self.report(|updates, now| updates.pause_until = updates.pause_until.max(now.saturating_add(wait)));
    }

    /// Records an update for the store, and reports it without waiting for the next request.
    pub(super) fn report(&self, change: impl FnOnce(&mut Updates, u64)) {
        self.queue.inspect(|permits, _, now| change(&mut permits.session.updates, now));
        self.signal.requested.store(true, Ordering::SeqCst);
        self.signal.notify.notify_one();
        self.start();
    }
}

/// Applies server limits in this process and reports them to the store. A pause is reported immediately, and remaining
/// permits are reported with the next query.
impl PermitIssuer for Inner {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.queue.is_expired(permit)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Option<Learned> {
        let learned = self.queue.completed(permit, response);
        for remaining in response.remaining() {
            let uncounted = self.queue.uncounted();
            self.queue.inspect(|permits, _, now| permits.session.remember(*remaining, uncounted, now));
        }
        if let Some(pause) = response.requested_pause() {
            self.pause_until(clock::after(response.received_at(), pause));
        }
        learned
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.queue.dropped(permit);
    }
}
