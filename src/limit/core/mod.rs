//! The limiter's core: decides when each request gets its permits.
//!
//! The core is a state machine. It has no clock, lock, waker or timer, so that tests, simulations and models drive the
//! same code as the limiter. The caller passes the time, as nanoseconds since the limiter was created. Times never
//! decrease from one call to the next.
//!
//! - [`Core::submit`] grants a request its permits, queues it or refuses it.
//! - [`Core::advance`] grants the permits that have become available to the first waiters. Every other call that can
//!   make a waiter the first one also grants. [`Core::next_wake`] returns when to call `advance` next.
//! - [`Core::pop_woken`] returns the waiters that were granted or refused. [`Core::status`] returns the outcome.
//!
//! A grant to a waiter that does not collect it expires, and the next permits go to the waiter behind it. The absent
//! waiter keeps its position, and returns to it when its status is read.

mod amounts;
mod feedback;
mod forecast;
mod grants;
mod in_flight;
mod joint;
mod learned;
mod queue;
mod rules;
mod server;
mod settings;
mod state;
mod store;
pub mod supply;
#[cfg(test)]
mod tests;
pub(crate) mod units;
mod waiters;

use std::{
    num::NonZeroU32,
    ops::{Deref, DerefMut},
};

use self::{
    amounts::QueuedAmounts,
    forecast::Lateness,
    in_flight::InFlight,
    queue::{EMPTY, Queue},
    server::{ServerLimits, WITH_QUOTA, WITHOUT_QUOTA},
    supply::{Blocks, Supply},
    waiters::Waiter,
};
pub use self::{
    feedback::{End, Feedback},
    rules::Rule,
    server::BegunPause,
    settings::{CoreSettings, PauseSettings},
    store::{Demand, PermitSource},
    supply::Block,
    units::UnitState,
    waiters::{Ask, Grant, Latest, Stage, Status, Submitted, Ticket},
};
pub(crate) use self::{supply::has_quota, units::Units};
use crate::{
    error::{Reason, Refusal},
    policy::{
        Quota, Totals,
        adaptive::{Learner, Progress},
    },
};

/// How long a late waiter that was woken may hold up the waiters behind it: 50 ms in nanoseconds.
pub const PATIENCE: u32 = 50_000_000;

/// The state of one limiter.
#[derive(Debug)]
pub struct Core {
    supply: Supply,
    queue: Lazy<Queue>,
    server: Lazy<ServerLimits>,
    lateness: Lateness,
    blocks: Blocks,
    /// `None` unless the number of requests in flight is limited.
    pub(crate) in_flight: Option<Box<InFlight>>,
    /// `None` unless a quota counts a unit other than requests, or the limiter learns the rate of one.
    pub(crate) units: Option<Box<Units>>,
    obeys_remaining: bool,
    /// The quotas that replaced those with which the limiter was created. A thin pointer, because few keys of a `Keyed`
    /// have them.
    pub(crate) changed_quotas: Option<Box<Box<[Quota]>>>,
    granted: u64,
    /// The number of permits whose requests have ended.
    released: u64,
    /// The number of permits that were released without an accepted request.
    not_accepted: u64,
    refused: u64,
}

/// A part of the core that takes no memory until it is first changed, because most keys of a
/// [`Keyed`](crate::limit::Keyed) never need it.
#[derive(Debug, Clone)]
struct Lazy<T: 'static> {
    value: Option<Box<T>>,
    /// The value until the first change, which copies it.
    initial: &'static T,
}

impl<T> Lazy<T> {
    const fn new(initial: &'static T) -> Self {
        Self { value: None, initial }
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value.as_deref().unwrap_or(self.initial)
    }
}

impl<T: Clone> DerefMut for Lazy<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.get_or_insert_with(|| Box::new(self.initial.clone()))
    }
}

impl Core {
    /// Creates a limiter with all permits available.
    pub fn new(quotas: &[Quota], settings: CoreSettings) -> Self {
        let mut core = Self::of(Supply::new(quotas, settings.rule), quotas, settings.obeys_remaining);
        core.configure(settings);
        core.units = Units::new(quotas, settings.rule);
        if let Some(permits) = settings.initial_burst {
            core.supply.quotas.leave(permits, 0);
        }
        core
    }

    /// Changes the parts that differ from the defaults. The others take no memory until they are used.
    fn configure(&mut self, settings: CoreSettings) {
        if let Some(percent) = settings.lower_share {
            self.queue.shares.set_percent(percent);
        }
        if settings.pauses != PauseSettings::DEFAULT {
            self.server.pause.settings = settings.pauses;
        }
        let in_flight = |max| Box::new(InFlight::new(max, settings.hold_after_cancel));
        self.in_flight = settings.max_in_flight.map(in_flight);
    }

    fn of(supply: Supply, quotas: &[Quota], obeys_remaining: bool) -> Self {
        let has_quota = supply.learner().is_some() || has_quota(quotas);
        Self {
            server: Lazy::new(if has_quota { &WITH_QUOTA } else { &WITHOUT_QUOTA }),
            supply,
            queue: Lazy::new(&EMPTY),
            lateness: Lateness::new(quotas),
            blocks: Blocks::new(quotas),
            in_flight: None,
            units: None,
            obeys_remaining,
            changed_quotas: None,
            granted: 0,
            released: 0,
            not_accepted: 0,
            refused: 0,
        }
    }

    /// Grants the permits of a new request now, or queues the request, or refuses it because its wait would exceed its
    /// bounds.
    pub fn submit(&mut self, ask: Ask<'_>, now: u64) -> Result<Submitted, Refusal> {
        let due = match self.decide(&ask, now)? {
            Ok(grant) => return Ok(Submitted::Granted(grant)),
            Err(due) => due,
        };
        Ok(Submitted::Queued(self.enqueue(&ask, due, (false, PATIENCE), now)?))
    }

    /// Queues a request whose permits are expected at `due`, or refuses it because of its bounds.
    fn enqueue(
        &mut self,
        ask: &Ask<'_>,
        due: u64,
        (is_late, patience): (bool, u32),
        now: u64,
    ) -> Result<Ticket, Refusal> {
        let rank = ask.priority.rank();
        let reason = if self.queue.len(rank) >= ask.max_queue {
            Some(Reason::QueueFull)
        } else {
            self.missed_by_new(ask, due, now)
        };
        if let Some(reason) = reason {
            return Err(self.count_refused(reason, due, now));
        }
        let Ask { cost, priority, latest, is_renewed, is_in_flight, amounts: &amounts, .. } = *ask;
        let waiter = Waiter { cost, priority, latest, is_renewed, is_in_flight, is_late, patience, amounts };
        if !amounts.is_empty() && self.queue.amounts.is_none() {
            self.queue.amounts = Some(Box::new(QueuedAmounts::new(self.unit_limits())));
        }
        let ticket = self.queue.insert(waiter);
        self.watch_bound(latest);
        self.overtake(rank + 1, now);
        self.hold_head(now);
        Ok(ticket)
    }

    /// Grants the permits of a new request now, or refuses it with the wait that it would need.
    pub fn try_submit(&mut self, ask: Ask<'_>, now: u64) -> Result<Grant, Refusal> {
        match self.decide(&ask, now)? {
            Ok(grant) => Ok(grant),
            Err(due) => Err(self.count_refused(Reason::MaxWait, due, now)),
        }
    }

    /// Grants the permits of a new request now. Returns `None`, and counts no refusal, if it cannot.
    pub fn grant_now(&mut self, ask: &Ask<'_>, now: u64) -> Option<Grant> {
        if self.rejects(ask, now).is_some() { None } else { self.grant(ask, now).ok() }
    }

    /// Grants the permits of a new request, or returns when they would be available. Refuses a request that can never
    /// be granted.
    #[inline]
    fn decide(&mut self, ask: &Ask<'_>, now: u64) -> Result<Result<Grant, u64>, Refusal> {
        match self.rejects(ask, now) {
            Some(refusal) => Err(self.count(refusal)),
            None => Ok(self.grant(ask, now)),
        }
    }

    /// Grants the permits of a new request, or returns when they would be available.
    #[inline]
    fn grant(&mut self, ask: &Ask<'_>, now: u64) -> Result<Grant, u64> {
        let (cost, rank, largest) = (ask.cost, ask.priority.rank(), self.supply.largest());
        let is_first = self.arrive(cost, now);
        let goes_first = is_first || ask.is_renewed && self.queue.renewed == 0 && self.serves_renewed_first();
        let reserve = match goes_first {
            true => Some(0),
            false => self.queue.shares.reserve_of_new(self.queue.heads(), rank, cost, largest.into()),
        };
        if let Some(reserve) = reserve {
            if self.take((cost, ask.is_in_flight), ask.amounts, reserve, now, now) {
                if !is_first {
                    let heads = self.queue.heads();
                    self.queue.shares.grant_new(heads, rank, cost);
                    self.overtake(rank + 1, now);
                }
                return Ok(Grant::new(now, cost));
            }
        }
        Err(self.due_of_new(ask, now))
    }

    /// Prepares the queue for a new request of this cost. Returns whether no request waits.
    #[inline]
    fn arrive(&mut self, cost: NonZeroU32, now: u64) -> bool {
        if !self.queue.is_settled() {
            self.advance(now);
        } else {
            self.end_held(now);
        }
        let is_first = self.queue.is_empty();
        let permits = u64::from(cost.get());
        let costliest = if is_first { permits } else { self.queue.costliest.max(permits) };
        if costliest != self.queue.costliest {
            self.queue.costliest = costliest;
        }
        is_first
    }

    /// Returns when the permits of a new request are available, behind those of the waiters.
    fn due_of_new(&self, ask: &Ask<'_>, now: u64) -> u64 {
        let (rank, wanted) = (ask.priority.rank(), &self.queue.wanted);
        let own = wanted[rank].saturating_add(ask.cost.get().into());
        let total = self.queue.shares.total(rank, own, wanted, 0);
        let due = self.forecast(now, total);
        let ahead = self.queue.amounts.as_ref().map_or(Totals::NONE, |queued| {
            let needed = own.saturating_add(wanted.iter().take(rank).sum());
            amounts::ahead(total, needed, queued.of_rank(rank), queued.higher(rank))
        });
        self.due_behind(due, &ahead, ask.amounts, now)
    }

    /// Returns whether a request waits, or is to be woken.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        !self.queue.is_settled()
    }

    /// Returns whether no slot of the queue is in use.
    pub fn is_unused(&self) -> bool {
        self.queue.slots.is_unused()
    }

    /// Returns whether the next wake-up may be earlier because of this new waiter.
    pub fn may_hurry(&self, ticket: Ticket) -> bool {
        let is_behind = self.queue.bounded == 0 && self.queue.renewed == 0 && !self.queue.is_first(ticket);
        !is_behind || self.queue.only_rank().is_none()
    }

    /// Returns whether the limiter learns the rate.
    pub fn learns(&self) -> bool {
        self.supply.learner().is_some()
    }

    /// Returns whether the remaining permits of accepted responses apply.
    pub fn reads_remaining(&self) -> bool {
        let reads = match self.supply.learner() {
            Some(_) => self.learners().any(Learner::reads_headers),
            None => !self.server.has_quota,
        };
        reads || self.obeys_remaining
    }

    /// Returns whether every response applies, because the limiter waits for an accepted one, or because it learns, and
    /// a limit applies or its rate has changed.
    pub fn reads_all(&mut self, now: u64) -> bool {
        if self.server.pause.awaits_acceptance() {
            return true;
        }
        let Some(learner) = self.supply.learner() else { return false };
        let is_probing = self.learners().any(Learner::is_probing);
        is_probing || learner.has_changed() || self.server.any() && self.server.tidy(now)
    }

    /// Releases the permits of requests whose ends nobody else needs to know.
    pub fn released(&mut self, permits: u64) {
        self.released = self.released.wrapping_add(permits);
    }

    fn permits_in_flight(&self) -> u64 {
        self.granted.wrapping_sub(self.released)
    }

    /// Returns the number of permits whose requests the server may not have subtracted yet from the remaining permits
    /// that it reports.
    pub fn uncounted(&self, now: u64) -> u64 {
        self.permits_in_flight().saturating_add(self.server.unconfirmed.permits(now))
    }

    /// Returns the counts of permits that a learner needs.
    pub(super) fn progress(&self) -> Progress {
        Progress {
            accepted: self.released.wrapping_sub(self.not_accepted),
            in_flight: self.permits_in_flight(),
            each: 1,
        }
    }
}
