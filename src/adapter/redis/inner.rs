//! The state that the clones of a limiter share.

use std::sync::{Arc, Weak, atomic::AtomicBool};

use super::{
    permits::{Bell, Permits, Store},
    protocol::Decide,
    settings::Plan,
};
use crate::{limit::queue::external::Queue, policy::Quota, random::Random};

pub(super) struct Inner {
    pub(super) this: Weak<Self>,
    pub(super) queue: Arc<Queue<Permits>>,
    pub(super) bell: Arc<Bell>,
    /// Whether a task queries the store.
    pub(super) running: AtomicBool,
    pub(super) store: Box<dyn Decide>,
    pub(super) plan: Plan,
    pub(super) random: Random,
}

impl Inner {
    pub(super) fn new(store: Box<dyn Decide>, quotas: &[Quota], plan: Plan) -> Arc<Self> {
        let bell = Arc::new(Bell::default());
        let permits = Permits::new(plan.largest, plan.interval, plan.timeout, Arc::clone(&bell));
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            queue: Arc::new(Queue::external(permits, quotas)),
            bell,
            running: AtomicBool::new(false),
            store,
            plan,
            random: Random::from_entropy(),
        })
    }

    /// Changes the permits with `work` and serves the waiters.
    pub(super) fn update<T>(&self, work: impl FnOnce(&mut Permits, u64) -> T) -> T {
        self.queue.update(|permits| permits.store() != Store::Shared, work)
    }
}
