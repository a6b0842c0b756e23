//! The state that the clones of a limiter share.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::{
    permits::{Bell, Permits, Store},
    protocol::{Decide, News},
    settings::Settings,
};
use crate::{
    clock::{self, Instant},
    limit::{
        Permit, PermitIssuer, ResponseInfo,
        queue::external::{Queue, nanos},
    },
    random::Random,
};

pub(super) struct Inner {
    pub(super) this: Weak<Self>,
    pub(super) queue: Arc<Queue<Permits>>,
    pub(super) bell: Arc<Bell>,
    /// Whether a task queries the store.
    pub(super) running: AtomicBool,
    pub(super) store: Box<dyn Decide>,
    pub(super) settings: Arc<Settings>,
    pub(super) random: Random,
}

impl Inner {
    pub(super) fn new(store: Box<dyn Decide>, settings: Arc<Settings>) -> Arc<Self> {
        let bell = Arc::new(Bell::default());
        let (largest, interval) = (settings.largest(), settings.interval());
        let permits = Permits::new(largest, interval, settings.timeout, Arc::clone(&bell));
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            queue: Arc::new(Queue::external(permits, &settings.quotas)),
            bell,
            running: AtomicBool::new(false),
            store,
            settings,
            random: Random::from_entropy(),
        })
    }

    /// Changes the permits with `work` and serves the waiters.
    pub(super) fn update<T>(&self, work: impl FnOnce(&mut Permits, u64) -> T) -> T {
        self.queue.update(|permits| permits.store != Store::Shared, work)
    }

    pub(super) fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
        let wait = nanos(until.saturating_duration_since(clock::now()));
        self.report(|news, now| news.pause_until = news.pause_until.max(now.saturating_add(wait)));
    }

    /// Reports a change to the store without waiting for the next request.
    pub(super) fn report(&self, change: impl FnOnce(&mut News, u64)) {
        self.queue.inspect(|permits, _, now| change(&mut permits.session.news, now));
        self.bell.rung.store(true, Ordering::SeqCst);
        self.bell.news.notify_one();
        self.start();
    }
}

/// Applies the server limits here and reports them to the store: a pause immediately, the others with the next query.
impl PermitIssuer for Inner {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.queue.is_expired(permit)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) {
        self.queue.completed(permit, response);
        for remaining in response.remaining() {
            let uncounted = self.queue.uncounted();
            self.queue.inspect(|permits, _, now| permits.session.remember(*remaining, uncounted, now));
        }
        if let Some(pause) = response.requested_pause() {
            self.pause_until(clock::after(response.received_at(), pause));
        }
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.queue.dropped(permit);
    }
}
