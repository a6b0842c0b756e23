//! The queue in front of an algorithm, first in, first out within each priority: a [path without a lock](fast_path) for
//! requests that need not wait, and the [wait list](wait_list) for all others.

pub(super) mod acquire;
mod admission;
mod any;
mod bounds;
mod checker;
pub(crate) mod clock;
pub(super) mod counts;
#[cfg(feature = "redis")]
pub(crate) mod external;
pub(super) mod fast_path;
mod grants;
mod issuer;
#[cfg(all(test, outbound_loom))]
mod loom_tests;
mod presence;
mod slots;
pub(super) mod sync;
mod wait_list;
mod waiter;
mod waiters;

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    task::Waker,
    time::Duration,
};

use self::{
    clock::Clock,
    fast_path::{Arrival, FastGrant, FastPath, Setup},
    sync::{Mutex, MutexGuard, Ordering},
    wait_list::WaitList,
    waiters::Wakes,
};
use super::{
    algorithm::Algorithm,
    core::{
        lateness::{catch_up, slack},
        server::limits::ServerLimits,
    },
    permit::{Grant, Permit},
    permit_request::PermitRequest,
    snapshot::{Learned, Snapshot},
};
use crate::{
    clock::Instant,
    error::{Reason, Refusal},
    policy::{Priority, Quota, adaptive::Learner},
};

/// The longest time after a grant for which new requests yield to woken waiters: 100 ms in nanoseconds.
const PATIENCE: u64 = 100_000_000;

// Every grant first reads `setup`, the first field of `fast`, and later writes `arrival`. The order of the fields puts them
// into different cache lines, so that the read does not wait for the writes of other threads.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Queue<A> {
    fast: FastPath,
    /// The wait list. It is created when a request first has to wait, so most limiters of a [`Keyed`](super::Keyed)
    /// never create it.
    list: Mutex<Option<Box<WaitList<A>>>>,
    arrival: Arrival,
}

fn too_late() -> Refusal {
    Refusal::new(Reason::Deadline, Duration::ZERO)
}

impl<A: Algorithm> Queue<A> {
    pub(super) fn new(quotas: &[Quota], clock: Clock) -> Self {
        let bucket = A::lock_free(quotas);
        let list = bucket.is_none().then(|| Box::new(WaitList::new(A::new(quotas), quotas)));
        Self {
            arrival: Arrival::new(bucket.is_some()),
            fast: FastPath::new(clock, bucket, A::learns(), (slack(quotas), !quotas.is_empty())),
            list: Mutex::new(list),
        }
    }

    /// Prepares the queue for one key of many. Queues with the same quota share one setup.
    pub(super) fn share_setup(&mut self, shared: &mut Vec<Arc<Setup>>) {
        // The counts and times of a queue in use belong to its setup.
        if self.fast.granted() > 0 || self.fast.refused() > 0 {
            return;
        }
        self.fast.drop_stripes();
        if self.list.get_mut().unwrap_or_else(PoisonError::into_inner).is_none() {
            self.fast.share_setup(&mut self.arrival, shared);
        }
    }

    /// Takes the permits now, or returns a refusal with the wait that would be needed.
    #[inline]
    pub(super) fn try_take(&self, cost: NonZeroU32) -> Result<u64, Refusal> {
        match self.fast.take(&self.arrival, cost, None) {
            FastGrant::Granted { now } => Ok(now),
            FastGrant::NotBefore { now, due } => {
                Err(self.fast.refuse(Refusal::new(Reason::MaxWait, Duration::from_nanos(due - now))))
            }
            FastGrant::NeedsLock => self.try_take_locked(cost),
        }
    }

    #[inline(never)]
    fn try_take_locked(&self, cost: NonZeroU32) -> Result<u64, Refusal> {
        let request = PermitRequest::new().with_cost(cost);
        // The closure returns only the time of a grant, because copying a `Result` takes longer.
        let mut refusal = None;
        let granted_at = self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            list.expire_uncollected(&self.fast, now, wakes);
            match list.wait(&self.fast, &request, now, wakes) {
                Ok(None) => return Some(now),
                Ok(Some(due)) => {
                    refusal = Some(Refusal::new(Reason::MaxWait, Duration::from_nanos(due - now)));
                }
                Err(unavailable) => refusal = Some(unavailable),
            }
            None
        });
        granted_at.ok_or_else(|| self.fast.refuse(refusal.unwrap_or_else(too_late)))
    }

    /// Takes the permits now if that needs no lock. Otherwise returns `None`, and the caller must use
    /// [`join`](AnyQueue::join).
    pub(super) fn take_without_lock(&self, request: &PermitRequest) -> Option<u64> {
        match self.fast.attempt(&self.arrival, request) {
            FastGrant::Granted { now } => Some(now),
            FastGrant::NotBefore { .. } | FastGrant::NeedsLock => None,
        }
    }

    /// Creates a permit that borrows the queue.
    #[inline]
    pub(super) fn permit(&self, cost: NonZeroU32, granted_at: u64) -> Permit<'_> {
        Permit::issued(Grant::Borrowed(self, &self.fast, granted_at), cost)
    }

    /// Creates a permit that shares the queue.
    #[inline]
    pub(super) fn shared_permit(self: Arc<Self>, cost: NonZeroU32, granted_at: u64) -> Permit<'static> {
        let granted_at = self.fast.stamp(granted_at);
        Permit::issued(Grant::Shared(self, granted_at), cost)
    }

    pub(crate) fn pause_until(&self, until: Instant) {
        self.locked(|list, wakes| {
            if list.server.pause(self.fast.clock().at(until), self.fast.clock().now()) {
                list.apply_server(&self.fast, wakes);
            }
        });
    }

    pub(super) fn change(&self, quotas: &[Quota]) {
        self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            list.algorithm.change(quotas, now);
            // Grants are backdated by up to a quarter of the margin. A smaller margin allows less, so earlier grants are
            // moved forward by the difference.
            let before = std::mem::replace(&mut list.catch_up, catch_up(quotas));
            list.delay_grants(before.saturating_sub(list.catch_up));
            self.fast.slack.store(slack(quotas), Ordering::Release);
            list.server.has_quota = A::learns() || !quotas.is_empty();
            if !A::learns() {
                self.fast.reads_headers.store(quotas.is_empty(), Ordering::Release);
            }
            list.refuse_late(&self.fast, 0, wakes);
            // Wakes the head, which must set its timer again for the new quotas.
            list.wake_head(now, wakes);
        });
    }

    /// Gives each lower priority this percentage of the permits.
    pub(super) fn share(&self, percent: u32) {
        self.locked(|list, _| list.waiters.shares.set_percent(percent));
    }

    pub(crate) fn obey_remaining(&self) {
        self.fast.obeys_remaining.store(true, Ordering::Release);
    }

    /// Discards the server limits.
    pub(crate) fn resume(&self) {
        self.locked(|list, wakes| {
            list.server = ServerLimits::new(list.server.has_quota);
            if let Some(learner) = list.algorithm.learner_mut() {
                learner.resume();
            }
            list.wake_head(self.fast.clock().now(), wakes);
        });
    }

    /// Returns whether permits that were granted `held` nanoseconds ago have expired. They expire if they are held too
    /// long, if the limiter is paused, or if the server reported no remaining permits.
    fn is_expired_in(&self, list: &WaitList<A>, held: u64, now: u64) -> bool {
        let is_void = |learner: &Learner| learner.is_void(now.saturating_sub(held));
        held > self.fast.slack.load(Ordering::Acquire)
            || list.server.is_shut(now)
            || list.algorithm.learner().is_some_and(is_void)
    }

    /// Returns whether a new request must yield to waiters that were woken but not polled yet.
    fn awaits_woken(&self, list: &WaitList<A>) -> bool {
        self.fast.woken.load(Ordering::Acquire) > 0
            && self.fast.clock().now().saturating_sub(list.woken_at) <= PATIENCE
    }

    pub(super) fn leave_available(&self, permits: u32) {
        let list = self.list();
        if let (None, Some(bucket)) = (&*list, &self.fast.setup.bucket) {
            return self.arrival.postpone(bucket.arrival_with(permits, self.fast.clock().now()));
        }
        drop(list);
        self.locked(|list, _| list.algorithm.leave(permits, self.fast.clock().now()));
    }

    pub(super) fn is_idle(&self) -> bool {
        if self.list().is_none() {
            return self.arrival.is_full(self.fast.clock().now());
        }
        self.locked(|list, _| {
            let now = self.fast.clock().now();
            let in_use =
                !list.algorithm.is_whole(now) || list.server.tidy(now) || list.unconfirmed.permits(now) > 0;
            !in_use && list.waiters.len(Priority::COUNT - 1) == 0
        })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.locked(|list, _| {
            let now = self.fast.clock().now();
            let left = list.server.left(now).map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
            let paused_until = list.server.paused_until(now);
            Snapshot {
                available: if paused_until.is_some() { 0 } else { list.algorithm.available(now).min(left) },
                queued: list.waiters.len(Priority::COUNT - 1),
                paused_until: paused_until.map(|until| self.fast.clock().timer(until)),
                granted: self.fast.granted(),
                refused: self.fast.refused(),
                in_flight: self.fast.in_flight(),
                learned: list.algorithm.learner().and_then(|learner| self.learned(learner)),
            }
        })
    }

    fn learned(&self, learner: &Learner) -> Option<Learned> {
        learner.rate.map(|_| Learned {
            interval: Duration::from_nanos(learner.interval()),
            quota: learner.quota(),
            source: learner.source,
            throttled_at: learner.throttled_at.map(|at| self.fast.clock().timer(at)),
        })
    }

    /// Records that a woken task was polled. The last woken task opens the fast path again.
    fn arrive(&self) {
        if self.fast.woken.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.locked(|_, _| ());
        }
    }

    fn list(&self) -> MutexGuard<'_, Option<Box<WaitList<A>>>> {
        // Ignores poisoning: a panic while the lock is held can only come from cloning a waker, and leaves the list
        // consistent.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create_list(&self) -> Box<WaitList<A>> {
        let quota = self.fast.setup.bucket.as_ref().map(|bucket| bucket.quota);
        Box::new(WaitList::new(A::new(quota.as_slice()), quota.as_slice()))
    }

    fn locked<T>(&self, work: impl FnOnce(&mut WaitList<A>, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut guard = self.list();
        let list = guard.get_or_insert_with(|| self.create_list());
        // Closes the fast path, so that later requests take the lock. `in_flight` then includes every grant made without
        // the lock.
        if let Some(arrival) = self.arrival.close() {
            list.algorithm.set_arrival(arrival);
        }
        let outcome = work(list, &mut wakes);
        let is_probing = list.algorithm.learner().is_some_and(Learner::is_probing);
        let limited = (list.server.any() && list.server.tidy(self.fast.clock().now())) || is_probing;
        if let Some(learner) = list.algorithm.learner_mut() {
            self.fast.reads_headers.store(learner.reads_headers(), Ordering::Release);
            if learner.take_change() {
                self.fast.has_news.store(true, Ordering::Release);
            }
        }
        // Writes only a change, because threads that wait for the lock read this cache line.
        if self.fast.is_limited.load(Ordering::Relaxed) != limited {
            self.fast.is_limited.store(limited, Ordering::Release);
        }
        if let Some(arrival) = list.algorithm.arrival() {
            if !limited && list.waiters.is_empty() && !self.awaits_woken(list) {
                self.arrival.open(arrival);
            }
        }
        drop(guard);
        wakes.wake.into_iter().for_each(Waker::wake);
        outcome
    }
}

#[cfg(all(test, not(outbound_loom)))]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::limit::algorithm::token_bucket::Buckets;

    /// Most processors have cache lines of 64 bytes.
    #[test]
    fn grants_read_and_write_different_cache_lines() {
        assert_eq!((offset_of!(Queue<Buckets>, fast), offset_of!(FastPath, setup)), (0, 0));
        assert!(offset_of!(Queue<Buckets>, arrival) >= 64);
    }
}
