//! Requests that take the permits of two limiters together or none.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{Shared, waiting::Wakes};
use crate::{
    error::{Reason, Refusal},
    limit::{
        core::{Core, End, Status, Ticket},
        permit_request::PermitRequest,
    },
    policy::{Amounts, Taken},
};

/// The times of the grants of two limiters, or the refusal of one.
type Outcome = Result<[u64; 2], Refusal>;

/// The place of a request in a limiter's queue. Dropping it leaves the queue.
pub(crate) struct Place {
    limiter: Arc<Shared>,
    ticket: Ticket,
    amounts: Amounts,
}

impl Place {
    /// Joins the queue, or refuses the request. With `keeps_turn`, the request keeps its turn while it is polled at
    /// least once per second.
    pub(crate) fn join(
        limiter: &Arc<Shared>,
        request: &PermitRequest,
        keeps_turn: bool,
    ) -> Result<Self, Refusal> {
        let ticket = limiter.locked(|core, now| core.join(&limiter.ask(request, now), keeps_turn, now))?;
        Ok(Self { limiter: Arc::clone(limiter), ticket, amounts: *request.amounts() })
    }

    /// Waits until the permits are available.
    ///
    /// # Panics
    ///
    /// Panics if it has to wait without a tokio runtime, or if its timer is disabled.
    pub(crate) fn poll_due(&self, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        self.limiter.watch(self.ticket, cx.waker(), |core, now| match core.turn(self.ticket, now) {
            Ok(is_due) => is_due.then_some((Ok(()), true)),
            Err(refusal) => Some((Err(refusal), true)),
        })
    }

    /// Takes the permits of two requests that are due. Returns `None` if those of one are not available any more.
    pub(crate) fn take_both(&self, other: &Self) -> Option<Outcome> {
        self.limiter.locked_with(&other.limiter, |(own, own_now), (its, its_now)| {
            match (own.turn(self.ticket, own_now), its.turn(other.ticket, its_now)) {
                (Err(refusal), _) | (_, Err(refusal)) => Some(Err(refusal)),
                // Both are available at these times, so both are granted, unless a store changes its mind.
                (Ok(true), Ok(true)) => {
                    match (own.status(self.ticket, own_now), its.status(other.ticket, its_now)) {
                        (Status::Granted(first), Status::Granted(second)) => Some(Ok([first.at, second.at])),
                        (first, second) => {
                            waste(own, first, &self.amounts, own_now);
                            waste(its, second, &self.amounts, its_now);
                            Some(Err(Refusal::new(Reason::Unavailable, None)))
                        }
                    }
                }
                _ => None,
            }
        })
    }
}

/// Ends the permits of a request that is not sent.
fn waste(core: &mut Core, status: Status, amounts: &Amounts, now: u64) {
    if let Status::Granted(grant) = status {
        core.settle(grant.taken_at, &Taken::of(*amounts), &Amounts::NONE, now);
        core.finished(grant, End::Unsent, &Taken::unsent(*amounts), now);
        core.end_in_flight(false, now);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limiter.leave(self.ticket);
    }
}

impl Shared {
    /// Takes the permits of a new request from both limiters now. Returns `None` if one of them has none.
    pub(crate) fn grant_both(&self, other: &Self, request: &PermitRequest) -> Option<[u64; 2]> {
        self.locked_with(other, |(own, own_now), (its, its_now)| {
            let (first, second) = (self.ask(request, own_now), other.ask(request, its_now));
            if !own.is_free(&first, own_now) || !its.is_free(&second, its_now) {
                return None;
            }
            let second = its.grant_now(&second, its_now)?;
            match own.grant_now(&first, own_now) {
                Some(first) => Some([first.at, second.at]),
                None => {
                    waste(its, Status::Granted(second), request.amounts(), its_now);
                    None
                }
            }
        })
    }

    /// Refuses a new request that could not be granted within its bounds.
    pub(crate) fn foresee(&self, request: &PermitRequest) -> Result<(), Refusal> {
        self.locked(|core, now| core.foresee(&self.ask(request, now), now).map(|_| ()))
    }

    /// Calls `work` with both cores and their presents. The order of the locks is that of the addresses, so that two
    /// callers never wait for each other.
    fn locked_with<T>(&self, other: &Self, work: impl FnOnce((&mut Core, u64), (&mut Core, u64)) -> T) -> T {
        let (mut own_guard, mut other_guard) = if std::ptr::from_ref(self) < std::ptr::from_ref(other) {
            let own = self.lock();
            (own, other.lock())
        } else {
            let other = other.lock();
            (self.lock(), other)
        };
        let (own, own_now) = self.enter(&mut own_guard, None);
        let (its, its_now) = other.enter(&mut other_guard, None);
        let outcome = work((&mut own.core, own_now), (&mut its.core, its_now));
        let mut wakes = Wakes::default();
        for (limiter, state) in [(self, own), (other, its)] {
            limiter.publish(state);
            state.settle(true, &mut wakes);
        }
        drop((own_guard, other_guard));
        wakes.wake();
        outcome
    }
}
