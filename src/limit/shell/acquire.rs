//! Grants or refuses a request, without the lock if a block is open. Otherwise queues it.

use std::{
    fmt,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use super::{
    Guard, Shared, Take,
    driver::{self, Wakes},
};
use crate::{
    error::{Reason, Refusal, polled_after_completion},
    limit::{
        core::{Ask, Core, Grant, Latest, Status, Submitted, Ticket},
        limiter::{Limiter, PermitRequest},
        local_limiter::LocalLimiter,
        permit::Permit,
    },
    policy::{Amounts, nanos},
};

impl Limiter for LocalLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        Acquire::of(Arc::clone(&self.shared), *request)
    }
}

impl LocalLimiter {
    /// Waits for one permit.
    ///
    /// # Errors
    ///
    /// Returns a refusal if 10,000 requests of the same or a higher priority are queued.
    pub fn acquire(&self) -> Acquire {
        self.acquire_with(&PermitRequest::new())
    }

    /// Waits for a number of permits, which are granted together.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the quota can never grant this many permits at once, or if 10,000 requests of the same
    /// or a higher priority are queued.
    pub fn acquire_many(&self, permits: NonZeroU32) -> Acquire {
        self.acquire_with(&PermitRequest::new().with_cost(permits))
    }
}

/// The future of a limiter. It resolves to the permit of one request, or to a refusal.
///
/// # Cancellation
///
/// The future of a [`LocalLimiter`](super::super::LocalLimiter) joins the queue when it is first polled, and leaves the
/// queue when it is dropped. Dropping it while it is queued spends nothing. Dropping it between the grant and the next
/// poll wastes the permit.
///
/// # Panics
///
/// Panics if it has to wait and is polled without a tokio runtime, or in a runtime whose timer is disabled.
pub struct Acquire {
    stage: Stage,
}

/// In `New` and `Queued`, the limiter is `None` after the permits are granted or refused.
enum Stage {
    /// The future was not polled yet.
    New(Option<Arc<Shared>>, PermitRequest),
    Queued(Option<Arc<Shared>>, Ticket, Amounts),
    /// `None` after the outcome was returned.
    Ready(Option<Result<Permit<'static>, Refusal>>),
    Custom(Pin<Box<dyn Future<Output = Result<Permit<'static>, Refusal>> + Send>>),
}

impl Acquire {
    /// Creates the future of a custom limiter whose caller has to wait.
    pub fn new<F>(future: F) -> Self
    where
        F: Future<Output = Result<Permit<'static>, Refusal>> + Send + 'static,
    {
        Self { stage: Stage::Custom(Box::pin(future)) }
    }

    /// Creates the future of a custom limiter that decides immediately. Does not allocate.
    #[inline]
    pub fn ready(outcome: Result<Permit<'static>, Refusal>) -> Self {
        Self { stage: Stage::Ready(Some(outcome)) }
    }

    pub(crate) fn of(limiter: Arc<Shared>, request: PermitRequest) -> Self {
        Self { stage: Stage::New(Some(limiter), request) }
    }
}

impl Future for Acquire {
    type Output = Result<Permit<'static>, Refusal>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let stage = &mut self.get_mut().stage;
        let (limiter, amounts, outcome) = match stage {
            Stage::Ready(outcome) => {
                return Poll::Ready(outcome.take().unwrap_or_else(|| polled_after_completion()));
            }
            Stage::Custom(future) => return future.as_mut().poll(cx),
            Stage::New(limiter, request) => {
                let Some(joined) = limiter else { polled_after_completion() };
                let cost = request.cost();
                let outcome = match joined.attempt(request) {
                    Ok(decided) => decided.map(|at| Grant::new(at, cost)),
                    Err(read) => match joined.submit(request, read, cx.waker()) {
                        Ok(Joined::Granted(at)) => Ok(Grant::new(at, cost)),
                        Ok(Joined::Queued(ticket, has_driver)) => {
                            let limiter = limiter.take();
                            *stage = Stage::Queued(limiter.clone(), ticket, *request.amounts());
                            if let Some(limiter) = limiter.filter(|_| !has_driver) {
                                driver::start(&limiter);
                            }
                            return Poll::Pending;
                        }
                        Err(refusal) => Err(refusal),
                    },
                };
                (limiter, request.amounts(), outcome)
            }
            Stage::Queued(limiter, ticket, amounts) => {
                let Some(joined) = limiter else { polled_after_completion() };
                let outcome = ready!(joined.status(*ticket, cx.waker()));
                (limiter, &*amounts, outcome)
            }
        };
        // Moves the limiter into the permit, which saves a change of its reference count.
        let Some(limiter) = limiter.take() else { polled_after_completion() };
        Poll::Ready(outcome.map(|grant| Permit::shared(limiter, grant, amounts)))
    }
}

impl Drop for Acquire {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Queued(Some(limiter), ticket, _) = &self.stage {
            limiter.leave(*ticket);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

/// The outcome of a new request.
enum Joined {
    Granted(u64),
    /// The request waits, and whether the current runtime has a driver.
    Queued(Ticket, bool),
}

impl Shared {
    fn submit(&self, request: &PermitRequest, read: u64, waker: &Waker) -> Result<Joined, Refusal> {
        let ask = self.ask(request, read);
        let mut guard = match self.lock_or_take(&ask, read) {
            Ok(guard) => guard,
            Err(at) => return Ok(Joined::Granted(at)),
        };
        let (state, now) = self.enter(&mut guard, Some(read));
        match state.core.submit(ask, now) {
            Ok(Submitted::Granted(grant)) => {
                self.unlock(guard, true);
                Ok(Joined::Granted(grant.at))
            }
            Ok(Submitted::Queued(ticket)) => {
                let replaced = state.waiting().wakers.keep(ticket, waker);
                let (has_driver, may_hurry) = (state.has_driver(), state.core.may_hurry(ticket));
                self.unlock(guard, may_hurry);
                drop(replaced);
                Ok(Joined::Queued(ticket, has_driver))
            }
            Err(refusal) => {
                self.unlock_refused(guard, ask.cost, &refusal);
                Err(refusal)
            }
        }
    }

    /// Returns the outcome of a queued request. While it waits, stores its waker.
    fn status(self: &Arc<Self>, ticket: Ticket, waker: &Waker) -> Poll<Result<Grant, Refusal>> {
        self.watch(ticket, waker, |core, now| match core.status(ticket, now) {
            // The permits of a late waiter are taken now, so that the next one is due earlier than the driver knows.
            Status::Granted(grant) => Some((Ok(grant), grant.at == grant.taken_at)),
            Status::Refused(refusal) => Some((Err(refusal), true)),
            Status::Waiting => None,
        })
    }

    /// Returns the decision of `decide` on a queued request. If there is no decision, stores the waker of the request
    /// and starts the driver, unless it runs. `decide` also returns whether the next wake-up may be earlier.
    pub(super) fn watch<T>(
        self: &Arc<Self>,
        ticket: Ticket,
        waker: &Waker,
        decide: impl FnOnce(&mut Core, u64) -> Option<(T, bool)>,
    ) -> Poll<T> {
        let mut guard = self.lock();
        let (state, now) = self.enter(&mut guard, None);
        let Some((decision, may_hurry)) = decide(&mut state.core, now) else {
            let replaced = state.waiting().wakers.keep(ticket, waker);
            let has_driver = state.has_driver();
            self.unlock(guard, true);
            drop(replaced);
            if !has_driver {
                driver::start(self);
            }
            return Poll::Pending;
        };
        let waker = state.waiting().wakers.take(ticket);
        if state.core.is_unused() {
            state.waiting().wakers.clear();
        }
        self.unlock(guard, may_hurry);
        drop(waker);
        Poll::Ready(decision)
    }

    pub(super) fn leave(&self, ticket: Ticket) {
        let mut guard = self.lock();
        let (state, now) = self.enter(&mut guard, None);
        let is_queued = state.core.cancel(ticket, now);
        // Another request may use the slot of an ended one.
        let waker = if is_queued { state.waiting().wakers.take(ticket) } else { None };
        let mut wakes = Wakes::default();
        if state.core.is_unused() {
            state.waiting().wakers.clear();
            state.settle(true, &mut wakes);
        }
        self.unlock(guard, true);
        drop(waker);
        wakes.wake();
    }
}

impl Shared {
    /// Grants or refuses a request without the lock. If the lock is needed, returns the time of the call as `Err`.
    #[inline]
    pub(super) fn attempt(&self, request: &PermitRequest) -> Result<Result<u64, Refusal>, u64> {
        let now = self.setup.clock.now();
        match self.take_from_block(request, now) {
            Take::Taken => Ok(Ok(now)),
            Take::NeedsLock => Err(now),
            Take::NotBefore(due) => match self.latest(request, now).missed_by(due, now, 0) {
                Some(reason) => Ok(Err(self.refuse(reason, due, now))),
                None => Err(now),
            },
        }
    }

    /// Takes permits now, or refuses the request with the wait that it would need.
    #[inline]
    pub(crate) fn try_take(&self, cost: NonZeroU32) -> Result<u64, Refusal> {
        let now = self.setup.clock.now();
        match self.block.take(cost.get(), now) {
            Take::Taken => Ok(now),
            Take::NotBefore(due) => Err(self.refuse(Reason::MaxWait, due, now)),
            Take::NeedsLock => self.try_take_locked(cost, now),
        }
    }

    #[inline(never)]
    fn try_take_locked(&self, cost: NonZeroU32, read: u64) -> Result<u64, Refusal> {
        let request = PermitRequest::new().with_cost(cost).with_max_queue(0);
        let ask = self.ask(&request, read);
        let mut guard = match self.lock_or_take(&ask, read) {
            Ok(guard) => guard,
            Err(at) => return Ok(at),
        };
        let (state, now) = self.enter(&mut guard, Some(read));
        let outcome = state.core.try_submit(ask, now);
        match &outcome {
            Ok(_) => self.unlock(guard, true),
            Err(refusal) => self.unlock_refused(guard, cost, refusal),
        }
        outcome.map(|grant| grant.at)
    }

    /// Grants the permits of a request now. Returns `None`, and counts no refusal, if it cannot.
    pub(crate) fn grant_now(&self, request: &PermitRequest) -> Option<u64> {
        let now = self.setup.clock.now();
        match self.take_from_block(request, now) {
            Take::Taken => Some(now),
            _ => {
                let grant = self.locked(|core, now| core.grant_now(&self.ask(request, now), now))?;
                Some(grant.at)
            }
        }
    }

    /// Takes the permits of a request from the open block, unless its deadline has passed.
    #[inline]
    fn take_from_block(&self, request: &PermitRequest, now: u64) -> Take {
        match request.deadline() {
            Some(deadline) if self.setup.clock.at(deadline) < now => Take::NeedsLock,
            _ => self.block.take(request.cost().get(), now),
        }
    }

    /// Takes the lock, or takes the permits from a block that another caller has opened meanwhile. Closing that block
    /// at once would make all callers wait for the lock.
    #[inline]
    pub(super) fn lock_or_take(&self, ask: &Ask<'_>, read: u64) -> Result<Guard<'_>, u64> {
        let guard = self.lock();
        let is_taken = ask.latest.deadline >= read && self.block.take(ask.cost.get(), read) == Take::Taken;
        if is_taken { Err(read) } else { Ok(guard) }
    }

    pub(crate) fn ask<'a>(&self, request: &'a PermitRequest, now: u64) -> Ask<'a> {
        let latest = self.latest(request, now);
        Ask {
            cost: request.cost(),
            priority: request.priority(),
            latest,
            max_queue: request.max_queue(),
            is_in_flight: request.is_in_flight(),
            is_renewed: request.is_renewed(),
            amounts: request.amounts(),
        }
    }

    #[cold]
    pub(super) fn refuse(&self, reason: Reason, due: u64, now: u64) -> Refusal {
        self.refused.add();
        Refusal::new(reason, Duration::from_nanos(due - now))
    }

    /// Returns the bounds of a request as times of the limiter's clock.
    pub(super) fn latest(&self, request: &PermitRequest, now: u64) -> Latest {
        Latest {
            max_wait: request.max_wait().map_or(u64::MAX, |wait| now.saturating_add(nanos(wait))),
            deadline: request.deadline().map_or(u64::MAX, |deadline| self.setup.clock.at(deadline)),
        }
    }
}
