//! Admits requests to the queue, and returns the state of each waiter.

use std::{sync::Arc, task::Waker, time::Duration};

use tokio::runtime::{self, Handle};

use super::{
    Queue,
    any::{AnyQueue, Joined, Standing},
    checker,
    fast_path::{FastGrant, FastPath},
    sync::Ordering,
    too_late,
    wait_list::WaitList,
    waiter::{State, Waiter, latest_of},
    waiters::Wakes,
};
use crate::{
    clock::Instant,
    error::{Reason, Refusal},
    limit::{algorithm::Algorithm, permit::PermitIssuer, permit_request::PermitRequest},
    policy::Priority,
};

impl<A: Algorithm> AnyQueue for Queue<A> {
    fn join(&self, request: &PermitRequest, waker: Option<&Waker>) -> Result<Joined, Refusal> {
        let (fast, clock) = (&self.fast, self.fast.clock());
        match fast.attempt(&self.arrival, request) {
            FastGrant::Granted { now } => return Ok(Joined::Granted(clock.stamp(now))),
            FastGrant::NotBefore { now, due } => {
                if let Some(reason) = latest_of(request, now, clock).missed_by(due, now, 0) {
                    let wait = Duration::from_nanos(due - now);
                    return Err(fast.refuse(Refusal::new(reason, wait)));
                }
            }
            FastGrant::NeedsLock => {}
        }
        let waker = waker.cloned();
        let joined = self.locked(|list, wakes| {
            let now = clock.now();
            if fast.is_late(request, now) {
                return Err(too_late());
            }
            list.expire_uncollected(fast, now, wakes);
            match (list.wait(fast, request, now, wakes)?, waker) {
                (None, Some(waker)) if self.awaits_woken(list) => {
                    // Earlier waiters were granted their permits, but their tasks have not run yet. Makes this request
                    // yield once, so that those tasks run first.
                    wakes.wake.push(waker);
                    let waiter = list.new_waiter(request, latest_of(request, now, clock));
                    waiter.set(State::Granted(now));
                    list.await_collection(fast, Arc::clone(&waiter), now);
                    Ok(Joined::Queued { waiter, sleeps: true, unchecked: false })
                }
                (None, _) => Ok(Joined::Granted(clock.stamp(now))),
                (Some(due), Some(waker)) => {
                    let waiter = list.admit(request, due, now, clock)?;
                    list.insert(fast, &waiter, waker, wakes);
                    let sleeps = waiter.state() == State::Waiting && !list.is_head(&waiter);
                    Ok(Joined::Queued { waiter, sleeps, unchecked: list.presence.is_unchecked() })
                }
                (Some(due), None) => Err(Refusal::new(Reason::MaxWait, Duration::from_nanos(due - now))),
            }
        });
        joined.map_err(|refusal| fast.refuse(refusal))
    }

    fn visit(&self, waiter: &Arc<Waiter>, waker: &Waker) -> Result<Standing, Refusal> {
        let fast = &self.fast;
        if let State::Granted(at) = waiter.state() {
            if let Some(now) = fast.is_valid(at).filter(|_| waiter.collect(at)) {
                self.arrive();
                return Ok(Standing::Granted(fast.clock().stamp(now)));
            }
        }
        self.locked(|list, wakes| {
            let now = fast.clock().now();
            let mut unchecked = false;
            match waiter.state() {
                State::Granted(at) => {
                    waiter.set(State::Collected);
                    fast.woken.fetch_sub(1, Ordering::AcqRel);
                    if !self.is_expired_in(list, now.saturating_sub(at), now) {
                        return Ok(Standing::Granted(fast.clock().stamp(now)));
                    }
                    list.release_without_acceptance(fast, waiter.cost);
                    let is_lost = list.lose(at, false, now);
                    unchecked = requeue(list, fast, waiter, waker, wakes);
                    if is_lost {
                        list.wake_head(now, wakes);
                    }
                }
                State::Expired => unchecked = requeue(list, fast, waiter, waker, wakes),
                State::Waiting => {
                    list.return_absent(fast, waiter, wakes);
                    list.keep_waker(waiter, waker, wakes);
                }
                State::Collected | State::Refused => {}
            }
            if waiter.state() == State::Refused {
                // The refusal was stored under the same lock as the state, so it exists.
                let refusal = list.refusals.remove(&waiter.id);
                return Err(refusal.unwrap_or(Refusal::new(Reason::MaxWait, None)));
            }
            let Some(head) = list.head().filter(|head| head.id == waiter.id) else {
                return Ok(Standing::Waiting { poll_at: None, unchecked });
            };
            // A learner recognizes its probe by the time of the grant.
            if let Some(at) = list.serve(fast, Some(waiter.id), wakes) {
                return Ok(Standing::Granted(fast.clock().stamp(at)));
            }
            let (due, grace) = (list.due(now, &head), list.algorithm.grace());
            match waiter.latest.missed_by(due, now, grace) {
                Some(reason) => {
                    list.leave(waiter, now, wakes);
                    Err(fast.refuse(Refusal::new(reason, Duration::from_nanos(due - now))))
                }
                None => {
                    let poll_at = list.algorithm.poll_at(list.gather(now, due), now);
                    let poll_at = poll_at.min(waiter.latest.last(grace));
                    list.presence.expected_at = poll_at;
                    Ok(Standing::Waiting { poll_at: Some(fast.clock().timer(poll_at)), unchecked })
                }
            }
        })
    }

    fn start_checks(self: Arc<Self>) {
        let Ok(handle) = Handle::try_current() else { return };
        let runtime = handle.id();
        let at = self.locked(|list, _| {
            let now = self.fast.clock().now();
            list.presence.add(runtime).then(|| self.fast.clock().timer(list.presence.check_at(now)))
        });
        if let Some(at) = at {
            let queue = Arc::downgrade(&self);
            handle.spawn(checker::check(queue, runtime, at));
        }
    }

    fn check(&self, runtime: runtime::Id) -> Option<Instant> {
        self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            list.expire_uncollected(&self.fast, now, wakes);
            list.presence.skip_absent(&mut list.waiters, now, wakes);
            if list.waiters.len(Priority::COUNT - 1) == 0 {
                list.presence.remove(runtime);
                return None;
            }
            Some(self.fast.clock().timer(list.presence.check_at(now)))
        })
    }

    fn stop_checks(&self, runtime: runtime::Id) {
        self.locked(|list, _| list.presence.remove(runtime));
    }

    fn leave(&self, waiter: &Waiter) {
        self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            list.leave(waiter, now, wakes);
            let State::Granted(at) = waiter.state() else { return };
            waiter.set(State::Collected);
            self.fast.woken.fetch_sub(1, Ordering::AcqRel);
            if list.lose(at, false, now) {
                list.wake_head(now, wakes);
            }
            list.release_without_acceptance(&self.fast, waiter.cost);
        });
    }

    fn issuer(self: Arc<Self>) -> Arc<dyn PermitIssuer> {
        self
    }
}

/// Queues a waiter whose permits have expired again, ahead of all later waiters of its priority. Returns whether no task of
/// the current runtime checks the queue.
fn requeue<A: Algorithm>(
    list: &mut WaitList<A>,
    fast: &FastPath,
    waiter: &Arc<Waiter>,
    waker: &Waker,
    wakes: &mut Wakes,
) -> bool {
    waiter.set(State::Waiting);
    list.insert(fast, waiter, waker.clone(), wakes);
    list.presence.is_unchecked()
}
