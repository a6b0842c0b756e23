//! The state that the clones of a limiter share.

use std::sync::{Arc, Weak, atomic::AtomicBool};

use super::{
    permits::{Bell, Permits, Store},
    protocol::Decide,
    settings::Settings,
};
use crate::{limit::queue::external::Queue, random::Random};

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
        self.queue.update(|permits| permits.store() != Store::Shared, work)
    }
}
