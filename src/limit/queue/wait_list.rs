//! The queued requests, in FIFO order within each priority. One timer is armed for all permits, and each grant wakes at
//! most two waiters.
//!
//! Only the head has a timer for its permits. When the timer fires, the head takes permits for itself and for all
//! waiters behind it whose permits are available. It wakes those waiters, and wakes the new head, which arms the next
//! timer. A future reads its grant from its [`Waiter`].
//!
//! A head that nobody polls must not stop the waiters behind it. A [task](super::checker) therefore checks whether the
//! head was polled.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use super::{
    clock::Clock,
    fast_path::FastPath,
    presence::Presence,
    waiter::{Latest, Waiter, latest_of},
    waiters::{Head, Waiters, Wakes},
};
use crate::{
    error::{Reason, Refusal},
    limit::{
        algorithm::Algorithm,
        core::{
            lateness::{GATHER, MAX_GATHERED, PART, TICK, catch_up},
            server::{limits::ServerLimits, unconfirmed::Unconfirmed},
        },
        permit_request::PermitRequest,
    },
    policy::Quota,
};

#[derive(Debug)]
pub(super) struct WaitList<A> {
    pub(super) algorithm: A,
    pub(super) server: ServerLimits,
    pub(super) unconfirmed: Unconfirmed,
    /// The refusals of waiters that have not been polled since they were refused, by the id of the waiter.
    pub(super) refusals: BTreeMap<u64, Refusal>,
    /// The time of the last grant that woke a waiter.
    pub(super) woken_at: u64,
    /// The number of permits that were released without an accepted request. Changes only under the lock. It is
    /// complete only if the algorithm learns, because other limiters also release permits without the lock.
    pub(super) not_accepted: u64,
    pub(super) waiters: Waiters,
    pub(super) presence: Presence,
    /// The waiters that were woken for their granted permits, in the order of the grants, with the times of the grants.
    pub(super) uncollected: VecDeque<(u64, Arc<Waiter>)>,
    /// The longest time by which a grant is backdated, in nanoseconds: see [`catch_up`].
    pub(super) catch_up: u64,
    /// The time to which the last grant was backdated. The times of grants never decrease.
    pub(super) taken_at: u64,
    last_id: u64,
    /// The highest cost of any request since the queue was last empty.
    pub(super) costliest: u32,
}

impl<A: Algorithm> WaitList<A> {
    pub(super) fn new(algorithm: A, quotas: &[Quota]) -> Self {
        Self {
            algorithm,
            server: ServerLimits::new(A::learns() || !quotas.is_empty()),
            unconfirmed: Unconfirmed::default(),
            refusals: BTreeMap::new(),
            woken_at: 0,
            not_accepted: 0,
            waiters: Waiters::default(),
            presence: Presence::default(),
            uncollected: VecDeque::new(),
            catch_up: catch_up(quotas),
            taken_at: 0,
            last_id: 0,
            costliest: 1,
        }
    }

    /// Takes the permits for a new request and returns `None`. Otherwise returns when they would be available, behind
    /// the waiters of the same and higher priorities and the shares of lower ones.
    #[inline]
    pub(super) fn wait(
        &mut self,
        fast: &FastPath,
        request: &PermitRequest,
        now: u64,
        wakes: &mut Wakes,
    ) -> Result<Option<u64>, Refusal> {
        let (cost, largest) = (request.cost(), self.algorithm.largest());
        if cost.get() > largest {
            return Err(Refusal::new(Reason::TooCostly { largest }, None));
        }
        if let Some(refusal) = self.algorithm.unavailable(cost, now) {
            return Err(refusal);
        }
        if !self.waiters.is_empty() {
            self.serve(fast, None, wakes);
        }
        if !self.waiters.is_empty() {
            return Ok(self.wait_behind(fast, request, now, wakes));
        }
        self.costliest = cost.get();
        let is_taken = self.take(fast, (cost, 0), now, now);
        Ok(if is_taken { None } else { Some(self.forecast(now, cost.get().into())) })
    }

    fn wait_behind(
        &mut self,
        fast: &FastPath,
        request: &PermitRequest,
        now: u64,
        wakes: &mut Wakes,
    ) -> Option<u64> {
        let (cost, rank, largest) = (request.cost(), request.priority().rank(), self.algorithm.largest());
        self.costliest = self.costliest.max(cost.get());
        if let Some(reserve) = self.waiters.reserve_of_new(rank, cost, largest) {
            if self.take(fast, (cost, reserve), now, now) {
                let head = self.head();
                self.waiters.grant_new(rank, cost);
                if self.head() != head {
                    self.wake_head(now, wakes);
                }
                self.overtake(fast, rank + 1, cost, wakes);
                return None;
            }
        }
        let own = self.waiters.wanted[rank].saturating_add(cost.get().into());
        let total = self.waiters.shares.total(rank, own, &self.waiters.wanted, 0);
        Some(self.forecast(now, total))
    }

    /// Queues a new request whose permits would be available at `due`, or refuses it.
    pub(super) fn admit(
        &mut self,
        request: &PermitRequest,
        due: u64,
        now: u64,
        clock: &Clock,
    ) -> Result<Arc<Waiter>, Refusal> {
        let latest = latest_of(request, now, clock);
        let reason = if self.waiters.len(request.priority().rank()) >= request.max_queue() {
            Some(Reason::QueueFull)
        } else {
            latest.missed_by(due, now, self.algorithm.grace())
        };
        match reason {
            Some(reason) => Err(Refusal::new(reason, Duration::from_nanos(due - now))),
            None => Ok(self.new_waiter(request, latest)),
        }
    }

    /// Moves the times of all grants so far forward by `delay`.
    pub(super) fn delay_grants(&mut self, delay: u64) {
        if delay > 0 {
            self.algorithm.postpone(delay);
            self.taken_at = self.taken_at.saturating_add(delay);
        }
    }

    /// Removes a waiter. Wakes the next head, which arms its timer.
    pub(super) fn leave(&mut self, waiter: &Waiter, now: u64, wakes: &mut Wakes) {
        let before = self.head();
        self.refusals.remove(&waiter.id);
        wakes.drop.extend(self.waiters.remove(waiter).map(|entry| entry.waker));
        if self.head() != before {
            self.wake_head(now, wakes);
        }
    }

    /// Queues a waiter. Its task must poll it again if it is the new head.
    pub(super) fn insert(&mut self, fast: &FastPath, waiter: &Arc<Waiter>, waker: Waker, wakes: &mut Wakes) {
        let before = self.head_of_several(waiter);
        self.waiters.insert(waiter, waker);
        self.inserted(fast, waiter, before, wakes);
    }

    /// Puts a waiter back at its position if it was absent.
    pub(super) fn return_absent(&mut self, fast: &FastPath, waiter: &Waiter, wakes: &mut Wakes) {
        if self.waiters.is_absent(waiter) {
            let before = self.head_of_several(waiter);
            self.waiters.return_absent(waiter);
            self.inserted(fast, waiter, before, wakes);
        }
    }

    /// Returns the head, unless the only other head after the insertion of `waiter` would be `waiter`.
    fn head_of_several(&self, waiter: &Waiter) -> Option<Head> {
        let is_one = self.waiters.is_empty() || self.waiters.only_rank() == Some(waiter.rank);
        if is_one { None } else { self.head() }
    }

    fn inserted(&mut self, fast: &FastPath, waiter: &Waiter, before: Option<Head>, wakes: &mut Wakes) {
        let now = fast.clock().now();
        if self.is_head(waiter) {
            self.presence.expected_at = now;
        } else if before.is_some() && before != self.head() {
            self.wake_head(now, wakes);
        }
        self.limit_spare(now, waiter);
        self.delay_others(fast, waiter, wakes);
    }

    pub(super) fn new_waiter(&mut self, request: &PermitRequest, latest: Latest) -> Arc<Waiter> {
        self.last_id += 1;
        let class = (request.priority().rank(), request.cost());
        Arc::new(Waiter::new(self.last_id, class, latest))
    }

    /// Records that a waiter was polled, and stores its waker.
    pub(super) fn keep_waker(&mut self, waiter: &Waiter, waker: &Waker, wakes: &mut Wakes) {
        let Some(entry) = self.waiters.get_mut(waiter) else { return };
        entry.woken_at = None;
        if !entry.waker.will_wake(waker) {
            wakes.drop.push(std::mem::replace(&mut entry.waker, waker.clone()));
        }
    }

    /// Returns when the last of `total` permits can be granted.
    pub(super) fn forecast(&self, now: u64, total: u64) -> u64 {
        let algorithm = |start, total| self.algorithm.forecast(start, total, self.costliest);
        self.server.forecast(algorithm, now, total)
    }

    /// Returns when the permits of the head are available.
    pub(super) fn due(&self, now: u64, head: &Head) -> u64 {
        let costliest = u32::try_from(head.needed()).unwrap_or(u32::MAX).max(self.costliest);
        // The server's limits apply only to the permits that the head takes.
        let by_quota = self.algorithm.forecast(now, head.needed(), costliest);
        self.forecast(now, head.cost.get().into()).max(by_quota)
    }

    /// Returns when the head must be polled again. The head's permits are available at `due`. In a long queue, the head
    /// is polled a little later than `due`, so that one wake-up serves several waiters. It is never polled so late that
    /// one of these waiters misses its bounds.
    pub(super) fn gather(&self, now: u64, due: u64) -> u64 {
        let Some(head) = self.head() else { return due };
        let (needed, wanted) = (head.needed(), self.waiters.wanted());
        if wanted <= needed || self.server.any() || self.waiters.is_alone(&head) {
            return due;
        }
        let (next, last) = (self.forecast(now, needed + 1), self.forecast(now, wanted));
        let until = due.saturating_add(GATHER.min((last - now) / PART));
        let gather_end = due.saturating_add(next.saturating_sub(due).saturating_mul(MAX_GATHERED));
        let bounds = self.waiters.iter().take(MAX_GATHERED as usize).map(|entry| entry.waiter.latest.last(0));
        let until = bounds.map(|latest| latest.saturating_sub(TICK)).fold(until.min(gather_end), u64::min);
        self.algorithm.gather(needed, due, next, until.max(due))
    }

    pub(super) fn is_head(&self, waiter: &Waiter) -> bool {
        self.head().is_some_and(|head| head.id == waiter.id)
    }

    /// Wakes the head, which then arms its timer.
    pub(super) fn wake_head(&mut self, now: u64, wakes: &mut Wakes) {
        let Some(head) = self.head() else { return };
        if let Some(entry) = self.waiters.classes[head.rank].entries.get_mut(&head.id) {
            self.presence.expected_at = *entry.woken_at.get_or_insert(now);
            wakes.wake.push(entry.waker.clone());
        }
    }

    /// Returns the waiter that is served next.
    pub(super) fn head(&self) -> Option<Head> {
        self.waiters.head(self.algorithm.largest())
    }
}
