//! Requests that take the permits of two limiters together or none.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{Shared, driver::Wakes};
use crate::{
    error::Refusal,
    limit::{
        core::{Core, End, Grant, Ticket},
        limiter::PermitRequest,
    },
    policy::{self, Amounts},
};

/// The result of taking the permits of two due requests.
pub(crate) enum Outcome {
    /// The times of the grants of both limiters, or the refusal of one.
    Decided(Result<[u64; 2], Refusal>),
    /// The store of a limiter has not granted its permits. No permits were taken, and both requests stay queued.
    Withheld,
    /// The permits of one limiter are no longer available.
    NotDue,
}

/// The place of a request in a limiter's queue. Dropping it leaves the queue.
pub(crate) struct Place {
    limiter: Arc<Shared>,
    ticket: Ticket,
    request: PermitRequest,
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
        Ok(Self { limiter: Arc::clone(limiter), ticket, request: *request })
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

    /// Takes the permits of two requests that are due.
    pub(crate) fn take_both(&self, other: &Self) -> Outcome {
        self.limiter.locked_with(&other.limiter, |(own, own_now), (its, its_now)| {
            match (own.turn(self.ticket, own_now), its.turn(other.ticket, its_now)) {
                (Err(refusal), _) | (_, Err(refusal)) => return Outcome::Decided(Err(refusal)),
                (Ok(true), Ok(true)) => {}
                _ => return Outcome::NotDue,
            }
            // Both are available at these times, so both are granted, unless a store lacks the amounts.
            let takes = [(own, own_now, self.ticket), (its, its_now, other.ticket)];
            match take_in_order(takes, &self.request, |core, now, ticket| core.take_turn(ticket, now)) {
                Ok(granted) => Outcome::Decided(Ok(granted)),
                Err((Some(refusal), _)) => Outcome::Decided(Err(refusal)),
                Err((None, is_wasted)) => {
                    if is_wasted {
                        Outcome::NotDue
                    } else {
                        Outcome::Withheld
                    }
                }
            }
        })
    }
}

/// Takes the permits of both limiters. Calls a store first, because only a store can refuse permits that are available.
/// Returns the times of the grants, or the refusal and whether the permits of the other limiter were wasted.
fn take_in_order<T, E>(
    takes: [(&mut Core, u64, T); 2],
    request: &PermitRequest,
    take: impl Fn(&mut Core, u64, T) -> Result<Grant, E>,
) -> Result<[u64; 2], (E, bool)> {
    let [own, its] = takes;
    let is_swapped = its.0.is_stored() && !own.0.is_stored();
    let [(core, now, first), (other, other_now, second)] = if is_swapped { [its, own] } else { [own, its] };
    let first = take(core, now, first).map_err(|refusal| (refusal, false))?;
    match take(other, other_now, second) {
        Ok(second) if is_swapped => Ok([second.at, first.at]),
        Ok(second) => Ok([first.at, second.at]),
        Err(refusal) => {
            waste(core, first, request, now);
            Err((refusal, true))
        }
    }
}

/// Ends the permits of a request that is not sent.
fn waste(core: &mut Core, grant: Grant, request: &PermitRequest, now: u64) {
    let amounts = *request.amounts();
    core.settle(grant.taken_at, &policy::Taken::of(amounts), &Amounts::NONE, now);
    core.finished(grant, End::Unsent, &policy::Taken::unsent(amounts), now);
    // A renewed request stays in flight.
    if !request.is_in_flight() {
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
            let takes = [(own, own_now, &first), (its, its_now, &second)];
            take_in_order(takes, request, |core, now, ask| core.grant_now(ask, now).ok_or(())).ok()
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
