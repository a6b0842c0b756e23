//! The queue's interface to an algorithm that gets its permits from a store outside this process.

use std::num::NonZeroU32;

pub(crate) use super::Queue;
pub(crate) use crate::limit::algorithm::{Algorithm, sliding_window::Logs, token_bucket::Buckets};

use super::{
    clock::Clock,
    fast_path::{Arrival, FastPath},
    sync::Mutex,
    wait_list::WaitList,
};
use crate::{
    clock::Instant,
    limit::core::lateness::slack,
    policy::{Quota, priority::Shares},
};

/// The number of permits that the waiters need. Times are nanoseconds since the queue's origin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// The permits that all waiters need together.
    pub(crate) permits: u64,
    /// The permits that the head of the queue needs. `None` if no request waits.
    pub(crate) head: Option<NonZeroU32>,
    /// The time after which a grant is too late for at least one waiter.
    pub(crate) last: Option<u64>,
}

impl<A: Algorithm> WaitList<A> {
    fn demand(&self) -> Demand {
        let grace = self.algorithm.grace();
        Demand {
            permits: self.waiters.wanted(),
            head: self.head().map(|head| head.cost),
            last: self.waiters.iter().map(|entry| entry.waiter.latest.last(grace)).min(),
        }
    }
}

impl<A: Algorithm> Queue<A> {
    /// Creates a queue for an algorithm that gets its permits through [`update`](Self::update).
    pub(crate) fn external(algorithm: A, quotas: &[Quota]) -> Self {
        let mut list = Box::new(WaitList::new(algorithm, quotas));
        // External permits expire, so a grant must not be backdated.
        list.catch_up = 0;
        list.waiters.shares = Shares::default().without_saving();
        let list = Some(list);
        let queue = Self {
            arrival: Arrival::new(false),
            fast: FastPath::new(Clock::tokio(), None, A::learns(), (slack(quotas), true)),
            list: Mutex::new(list),
        };
        queue.obey_remaining();
        queue
    }

    /// Calls `work` with the algorithm, the waiters' demand and the current time.
    pub(crate) fn inspect<T>(&self, work: impl FnOnce(&mut A, Demand, u64) -> T) -> T {
        self.locked(|list, _| {
            let demand = list.demand();
            work(&mut list.algorithm, demand, self.fast.clock().now())
        })
    }

    /// Changes the algorithm with `work`, refuses the waiters that have become too late, then grants permits to the
    /// remaining waiters.
    ///
    /// `may_refuse` returns whether [`Algorithm::unavailable`] may refuse a waiter.
    pub(crate) fn update<T>(&self, may_refuse: fn(&A) -> bool, work: impl FnOnce(&mut A, u64) -> T) -> T {
        self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            let outcome = work(&mut list.algorithm, now);
            // Refuses the waiters that are too late before any grant, so that they take no permits.
            let demand = list.demand();
            let is_late = |last| list.forecast(now, demand.permits) > last || last <= now;
            if may_refuse(&list.algorithm) || demand.last.is_some_and(is_late) {
                list.refuse_late(&self.fast, 0, wakes);
            }
            list.serve(&self.fast, None, wakes);
            // Wakes the head, which must set its timer again after this change.
            list.wake_head(now, wakes);
            outcome
        })
    }

    /// Returns the nanoseconds since the queue's origin.
    pub(crate) fn now(&self) -> u64 {
        self.fast.clock().now()
    }

    /// Converts a time of the queue's clock to an `Instant` of tokio's timers.
    pub(crate) fn timer(&self, at: u64) -> Instant {
        self.fast.clock().timer(at)
    }

    /// Returns the number of permits whose requests the server may not have subtracted yet from the remaining permits
    /// that it reports.
    pub(crate) fn uncounted(&self) -> u64 {
        self.locked(|list, _| {
            self.fast.in_flight().saturating_add(list.unconfirmed.permits(self.fast.clock().now()))
        })
    }
}
