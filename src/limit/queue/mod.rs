//! The FIFO queue in front of an algorithm: a [path without a lock](fast_path) for requests that need not wait, and the
//! [wait list](wait_list) for all others.

pub(super) mod acquire;
mod any;
pub(crate) mod clock;
#[cfg(feature = "redis")]
pub(crate) mod external;
pub(super) mod fast_path;
mod issuer;
#[cfg(all(test, outbound_loom))]
mod loom_tests;
pub(super) mod sync;
mod wait_list;
mod waiter;

use std::{
    num::NonZeroU32,
    sync::{Arc, PoisonError},
    task::Waker,
    time::Duration,
};

use self::{
    any::{AnyQueue, Joined, Standing},
    clock::Clock,
    fast_path::{BUSY, FastGrant, FastPath, LIMITED},
    sync::{Mutex, MutexGuard, Ordering},
    wait_list::{WaitList, Wakes, slack},
    waiter::{Latest, State, Waiter},
};
use super::{
    algorithm::Algorithm,
    permit::PermitIssuer,
    permit_request::PermitRequest,
    server::limits::ServerLimits,
    snapshot::{Learned, Snapshot},
};
use crate::{
    clock::Instant,
    error::{Reason, Refusal},
    policy::{Quota, adaptive::Learner},
};

/// The longest time after a grant for which new requests yield to woken waiters: 100 ms in nanoseconds.
const PATIENCE: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct Queue<A> {
    fast: FastPath,
    /// The wait list. It is created when a request first has to wait, so most limiters of a [`Keyed`](super::Keyed)
    /// never create it.
    list: Mutex<Option<Box<WaitList<A>>>>,
}

fn too_late() -> Refusal {
    Refusal::new(Reason::Deadline, Duration::ZERO)
}

impl<A: Algorithm> AnyQueue for Queue<A> {
    fn join(&self, request: &PermitRequest, waker: Option<&Waker>) -> Result<Joined, Refusal> {
        let (fast, clock) = (&self.fast, &self.fast.clock);
        match fast.attempt(request) {
            FastGrant::Granted { now } => return Ok(Joined::Granted(clock.stamp(now))),
            FastGrant::NotBefore { now, due } => {
                if let Some(reason) = Latest::of(request, now, clock).missed_by(due, now, 0) {
                    let wait = Duration::from_nanos(due - now);
                    return Err(fast.refuse(Refusal::new(reason, wait)));
                }
            }
            FastGrant::NeedsLock => {}
        }
        let (waker, cost) = (waker.cloned(), request.cost());
        let joined = self.locked(|list, wakes| {
            let now = clock.now();
            if fast.is_over(request, now) {
                return Err(too_late());
            }
            match (list.wait(fast, cost, now, wakes)?, waker) {
                (None, Some(waker)) if self.awaits_woken(list) => {
                    // Earlier waiters were granted their permits, but their tasks have not run yet. Makes this request
                    // yield once, so that those tasks run first.
                    wakes.wake.push(waker);
                    fast.woken.fetch_add(1, Ordering::AcqRel);
                    list.woken_at = now;
                    let waiter = list.new_waiter(cost, Latest::of(request, now, clock));
                    waiter.set(State::Granted(now));
                    Ok(Joined::Queued(waiter))
                }
                (None, _) => Ok(Joined::Granted(clock.stamp(now))),
                (Some(due), Some(waker)) => {
                    let waiter = list.admit(request, due, now, clock)?;
                    list.insert(&waiter, waker);
                    Ok(Joined::Queued(waiter))
                }
                (Some(due), None) => Err(Refusal::new(Reason::MaxWait, Duration::from_nanos(due - now))),
            }
        });
        joined.map_err(|refusal| fast.refuse(refusal))
    }

    fn visit(&self, waiter: &Arc<Waiter>, waker: &Waker) -> Result<Standing, Refusal> {
        let (fast, id, cost) = (&self.fast, waiter.id, waiter.cost);
        if let State::Granted(at) = waiter.state() {
            if let Some(now) = fast.is_valid(at) {
                self.arrive();
                return Ok(Standing::Granted(fast.clock.stamp(now)));
            }
        }
        self.locked(|list, wakes| {
            let now = fast.clock.now();
            let granted = Standing::Granted(fast.clock.stamp(now));
            match waiter.state() {
                State::Refused => {
                    // The refusal was stored under the same lock as the state, so it exists.
                    let refusal = list.refusals.remove(&id);
                    return Err(refusal.unwrap_or(Refusal::new(Reason::MaxWait, None)));
                }
                State::Granted(at) => {
                    fast.woken.fetch_sub(1, Ordering::AcqRel);
                    if !self.is_expired_in(list, now.saturating_sub(at), now) {
                        return Ok(granted);
                    }
                    let is_lost = list.lose(at, false, now);
                    // Returns the waiter to its old position, ahead of all waiters that arrived later.
                    waiter.set(State::Waiting);
                    fast.release_without_acceptance(cost);
                    list.insert(waiter, waker.clone());
                    if is_lost {
                        list.wake_head(wakes);
                    }
                }
                State::Waiting => list.keep_waker(id, waker, wakes),
            }
            if !list.is_head(id) {
                return Ok(Standing::Behind);
            }
            list.serve(fast, Some(id), wakes);
            if let State::Granted(at) = waiter.state() {
                // Not earlier than the grant: a learner recognizes its probe by this time.
                return Ok(Standing::Granted(fast.clock.stamp(now.max(at))));
            }
            let (due, grace) = (list.forecast(now, u64::from(cost.get())), list.algorithm.grace());
            match waiter.latest.missed_by(due, now, grace) {
                Some(reason) => {
                    list.leave(id, wakes);
                    Err(fast.refuse(Refusal::new(reason, Duration::from_nanos(due - now))))
                }
                None => {
                    let poll_at = list.algorithm.poll_at(list.gather(now, due), now);
                    let poll_at = fast.clock.timer(poll_at.min(waiter.latest.last(grace)));
                    Ok(Standing::Head { poll_at })
                }
            }
        })
    }

    fn leave(&self, waiter: &Waiter) {
        let granted = self.locked(|list, wakes| {
            list.leave(waiter.id, wakes);
            let State::Granted(at) = waiter.state() else { return false };
            self.fast.woken.fetch_sub(1, Ordering::AcqRel);
            if list.lose(at, false, self.fast.clock.now()) {
                list.wake_head(wakes);
            }
            true
        });
        if granted {
            self.fast.release_without_acceptance(waiter.cost);
        }
    }
    fn issuer(self: Arc<Self>) -> Arc<dyn PermitIssuer> {
        self
    }
}

impl<A: Algorithm> Queue<A> {
    pub(super) fn new(quotas: &[Quota], clock: Clock) -> Self {
        let shared = A::shared(quotas);
        let list = shared.is_none().then(|| Box::new(WaitList::new(A::new(quotas, None), quotas)));
        Self {
            fast: FastPath::new(clock, shared, (slack(quotas), !quotas.is_empty())),
            list: Mutex::new(list),
        }
    }

    /// Takes the permits now, or returns a refusal with the wait that would be needed.
    pub(super) fn try_take(&self, cost: NonZeroU32) -> Result<Instant, Refusal> {
        let request = PermitRequest::new().with_cost(cost).with_max_wait(Duration::ZERO);
        match self.join(&request.with_max_queue(usize::MAX), None)? {
            Joined::Granted(at) => Ok(at),
            // Unreachable, because `join` does not queue a request without a waker.
            Joined::Queued(_) => Err(too_late()),
        }
    }

    /// Takes the permits now if that needs no lock. Otherwise returns `None`, and the caller must use
    /// [`join`](AnyQueue::join).
    pub(super) fn take_without_lock(&self, request: &PermitRequest) -> Option<Instant> {
        match self.fast.attempt(request) {
            FastGrant::Granted { now } => Some(self.fast.clock.stamp(now)),
            FastGrant::NotBefore { .. } | FastGrant::NeedsLock => None,
        }
    }

    pub(crate) fn pause_until(&self, until: Instant) {
        self.locked(|list, wakes| {
            if list.server.pause(self.fast.clock.at(until), self.fast.clock.now()) {
                list.apply_server(&self.fast, wakes);
            }
        });
    }

    pub(super) fn change(&self, quotas: &[Quota]) {
        self.locked(|list, wakes| {
            list.algorithm.change(quotas, self.fast.clock.now());
            self.fast.slack.store(slack(quotas), Ordering::Release);
            list.server.has_quota = A::learns() || !quotas.is_empty();
            self.fast.has_quota.store(!quotas.is_empty(), Ordering::Release);
            list.refuse_late(&self.fast, wakes);
            // Wakes the head, which must set its timer again for the new quotas.
            list.wake_head(wakes);
        });
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
            list.wake_head(wakes);
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
            && self.fast.clock.now().saturating_sub(list.woken_at) <= PATIENCE
    }

    pub(super) fn leave_available(&self, permits: u32) {
        self.locked(|list, _| list.algorithm.leave(permits, self.fast.clock.now()));
    }

    pub(super) fn is_idle(&self) -> bool {
        if let Some(bucket) = self.fast.shared.as_ref().filter(|_| self.list().is_none()) {
            return bucket.is_full(self.fast.clock.now());
        }
        self.locked(|list, _| {
            let now = self.fast.clock.now();
            let in_use =
                !list.algorithm.is_whole(now) || list.server.tidy(now) || list.unconfirmed.permits(now) > 0;
            !in_use && list.entries.is_empty()
        })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.locked(|list, _| {
            let now = self.fast.clock.now();
            let left = list.server.left(now).map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
            let paused_until = list.server.paused_until(now);
            Snapshot {
                available: if paused_until.is_some() { 0 } else { list.algorithm.available(now).min(left) },
                queued: list.entries.len(),
                paused_until: paused_until.map(|until| self.fast.clock.timer(until)),
                granted: self.fast.granted(),
                refused: self.fast.refused.load(Ordering::Relaxed),
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
            throttled_at: learner.throttled_at.map(|at| self.fast.clock.timer(at)),
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
        let quota = self.fast.shared.as_ref().map(|bucket| bucket.quota);
        Box::new(WaitList::new(A::new(quota.as_slice(), self.fast.shared.clone()), quota.as_slice()))
    }

    fn locked<T>(&self, work: impl FnOnce(&mut WaitList<A>, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut guard = self.list();
        let list = guard.get_or_insert_with(|| self.create_list());
        let outcome = work(list, &mut wakes);
        let is_probing = list.algorithm.learner().is_some_and(Learner::is_probing);
        let limited = (list.server.any() && list.server.tidy(self.fast.clock.now())) || is_probing;
        if let Some(learner) = list.algorithm.learner_mut() {
            self.fast.reads_headers.store(learner.reads_headers(), Ordering::Release);
            if learner.take_change() {
                self.fast.has_news.store(true, Ordering::Release);
            }
        }
        let busy = limited || !list.entries.is_empty() || self.awaits_woken(list);
        let flags = if busy { BUSY } else { 0 } | if limited { LIMITED } else { 0 };
        if flags != list.flags {
            // Both flags change only under the lock. Flipping only the bits that differ therefore overwrites no change
            // of another thread.
            self.fast.tally().fetch_xor(flags ^ list.flags, Ordering::AcqRel);
            list.flags = flags;
        }
        drop(guard);
        wakes.wake.into_iter().for_each(Waker::wake);
        outcome
    }
}
