//! Grants or refuses a request now, without the lock if a block is open.

use std::{num::NonZeroU32, time::Duration};

use super::{Guard, Shared, block_word::Take};
use crate::{
    error::{Reason, Refusal},
    limit::{
        core::{Ask, Latest},
        permit_request::PermitRequest,
    },
    policy::nanos,
};

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
