//! The permits that the store has granted to this process. Each permit has a start time and an expiry.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::session::{Session, StoreLost};
use super::{fallback::Share, settings::Settings};
use crate::{
    error::{Reason, Refusal},
    limit::PermitSource,
    policy::{Amounts, Quota, Taken, nanos},
};

/// The state of the store of a [`RedisLimiter`](super::RedisLimiter), as this process knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// No query was sent yet.
    NotQueried,
    /// The store replies, so the processes share the quota.
    Shared,
    /// The store does not reply, so the process uses its share of the quota.
    Fallback,
    /// The store does not reply, so requests are refused.
    Refusing,
}

/// Signals to the task that queries the store.
#[derive(Debug, Default)]
pub(super) struct TaskSignal {
    /// [`REQUESTED`], [`RUNNING`] or both.
    pub(super) state: AtomicU8,
    /// Wakes the task to report an update, or to query earlier than planned.
    pub(super) notify: Notify,
}

/// A query was requested since the task last checked.
pub(super) const REQUESTED: u8 = 1;
/// A task that queries the store is running.
pub(super) const RUNNING: u8 = 2;

/// The permits from the store's replies. Times are nanoseconds since the limiter was created.
pub(super) struct Permits {
    leases: VecDeque<Lease>,
    /// The store's forecast of permits that it has not granted yet. `None` before its first reply and after a failure.
    pub(super) free: Option<Free>,
    /// `Some` if the last query failed.
    pub(super) lost: Option<Lost>,
    /// The shortest time between two permits that the store forecasts.
    interval: u64,
    largest: u32,
    grace: u64,
    hold: u64,
    /// The earliest time of the next query to the store.
    pub(super) query_at: u64,
    /// When the last share ended. The store counts no amounts that were taken from the share.
    shared_since: u64,
    /// The number of permits that expired unused since the last query for a lease.
    pub(super) unused: u32,
    signal: Arc<TaskSignal>,
    /// A request for fewer permits than this number wakes the waiting task. 0 if no request wakes the task.
    pub(super) listening: u32,
    pub(super) session: Session,
}

/// The state while the store does not reply.
pub(super) struct Lost {
    /// Why the last query failed. The text contains no secret.
    fault: Arc<str>,
    /// The process's share of the quota, which requests use. Without a share, every request is refused until the next
    /// query.
    share: Option<Share>,
}

/// A forecast of permits that the store has not granted. `at` is the earliest time at which they become available.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) at: u64,
    /// The number of permits in each block of the query. Fewer permits may be available before `at`.
    pub(super) unit: u32,
    /// The amounts of the block.
    pub(super) amounts: Amounts,
    /// The largest number of permits that may be available together at the time `at`.
    pub(super) together: u32,
}

/// Permits and amounts that may be used from `due` to `until`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) due: u64,
    pub(super) until: u64,
    pub(super) permits: u32,
    pub(super) amounts: Amounts,
}

impl Permits {
    pub(super) fn new(settings: &Settings, signal: Arc<TaskSignal>) -> Self {
        Self {
            leases: VecDeque::new(),
            free: None,
            interval: settings.interval(),
            lost: None,
            largest: settings.largest(),
            grace: nanos(settings.timeout),
            hold: nanos(settings.hold),
            query_at: 0,
            shared_since: 0,
            unused: 0,
            signal,
            listening: 0,
            session: Session::default(),
        }
    }

    /// Adds the grants of a reply from the store. The caller omits grants that arrived too late. Returns the logged
    /// loss of the store, which this reply ends.
    pub(super) fn fill(
        &mut self,
        grants: impl IntoIterator<Item = Lease>,
        free: Free,
        now: u64,
    ) -> Option<StoreLost> {
        if self.share().is_some() {
            self.shared_since = now;
        }
        self.free = Some(free);
        self.leases.extend(grants);
        self.lost = None;
        self.session.logged.take()
    }

    /// Records that the store does not reply, because of `fault`. The next query follows after `wait`. Returns whether
    /// the loss of the store was already logged.
    pub(super) fn fail(&mut self, fault: &str, settings: &Settings, wait: Duration, now: u64) -> bool {
        let after = |time: Duration| now.saturating_add(nanos(time));
        let lost = self.lost.get_or_insert_with(|| {
            // Until this time, other processes may still use permits that the store granted before the failure.
            let spent = after(settings.horizon() + settings.hold);
            let share = |quotas: &Vec<Quota>| Share::begin(settings.rule, quotas, spent, now);
            Lost { fault: Arc::default(), share: settings.share.as_ref().map(share) }
        });
        lost.fault = fault.into();
        lost.share.iter_mut().for_each(|share| share.until = after(settings.holdoff()));
        (self.free, self.query_at, self.session.late) = (None, after(wait), 0);
        self.leases.clear();
        self.session.logged.is_some()
    }

    pub(super) fn store(&self) -> Store {
        match &self.lost {
            Some(Lost { share: Some(_), .. }) => Store::Fallback,
            Some(_) => Store::Refusing,
            None if self.free.is_some() => Store::Shared,
            None => Store::NotQueried,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn share(&self) -> Option<&Share> {
        self.lost.as_ref()?.share.as_ref()
    }

    pub(super) fn share_mut(&mut self) -> Option<&mut Share> {
        self.lost.as_mut()?.share.as_mut()
    }

    /// Returns the grants that can be used now or later.
    fn usable(&self, now: u64) -> impl Iterator<Item = &Lease> {
        self.leases.iter().filter(move |grant| now < grant.until)
    }

    /// Returns the number of permits that can be used now or later.
    pub(super) fn in_hand(&self, now: u64) -> u64 {
        self.usable(now).map(|grant| u64::from(grant.permits)).sum()
    }

    /// Returns when the next of these permits expires.
    pub(super) fn next_expiry(&self, now: u64) -> u64 {
        self.usable(now).map(|grant| grant.until).min().unwrap_or(u64::MAX)
    }

    /// Returns whether the fetched permits and amounts suffice for one request. Enough of them must be usable at the
    /// same time, now or later.
    pub(super) fn will_serve(&self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool {
        self.usable(now).any(|last| {
            let together = self.usable(now).filter(|grant| grant.due <= last.due && last.due < grant.until);
            suffice(together, cost, amounts)
        })
    }

    /// Requests a query. Also wakes the task if it waits until more than `cost` permits are available together.
    pub(super) fn request_query(&mut self, cost: NonZeroU32) {
        self.signal.state.fetch_or(REQUESTED, Ordering::SeqCst);
        if cost.get() < self.listening {
            self.listening = 0;
            self.signal.notify.notify_one();
        }
    }

    /// Returns the amounts of all grants to the store, because no request waits for them.
    pub(super) fn return_amounts(&mut self) {
        for grant in &mut self.leases {
            self.session.give_back(grant.due, std::mem::take(&mut grant.amounts), self.hold);
        }
    }
}

fn suffice<'a>(grants: impl Iterator<Item = &'a Lease>, cost: NonZeroU32, amounts: &Amounts) -> bool {
    let add = |(permits, amounts): (u64, Amounts), grant: &Lease| {
        (permits + u64::from(grant.permits), amounts.plus(&grant.amounts))
    };
    let (permits, held) = grants.fold((0, Amounts::NONE), add);
    permits >= u64::from(cost.get()) && amounts.minus(&held).is_empty()
}

pub(super) fn lock(permits: &Mutex<Permits>) -> MutexGuard<'_, Permits> {
    // Ignores poisoning, because no code under this lock can panic.
    permits.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The permits, which the query task and the limiter share. The limiter calls the methods under its own lock.
pub(super) struct Source(pub(super) Arc<Mutex<Permits>>);

impl PermitSource for Source {
    fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool {
        let permits = &mut *lock(&self.0);
        if permits.is_lost() && now >= permits.query_at {
            permits.request_query(cost);
        }
        if let Some(share) = permits.share_mut() {
            return share.take(cost, amounts, now);
        }
        let leases = &mut permits.leases;
        while let Some(expired) = leases.front().filter(|grant| grant.until <= now) {
            permits.unused = permits.unused.saturating_add(expired.permits);
            permits.session.give_back(expired.due, expired.amounts, permits.hold);
            leases.pop_front();
        }
        if !suffice(leases.iter().take_while(|grant| grant.due <= now), cost, amounts) {
            permits.request_query(cost);
            return false;
        }
        let (mut missing, mut lacking) = (cost.get(), *amounts);
        for grant in leases.iter_mut().take_while(|grant| grant.due <= now) {
            let (taken, amounts) = (grant.permits.min(missing), grant.amounts.zip(&lacking, u32::min));
            (grant.permits, missing) = (grant.permits - taken, missing - taken);
            (grant.amounts, lacking) = (grant.amounts.minus(&amounts), lacking.minus(&amounts));
        }
        leases.retain(|grant| grant.permits > 0 || !grant.amounts.is_empty());
        true
    }

    /// Replaces the amounts of a request. The next query reports the difference.
    fn settle(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) {
        let permits = &mut *lock(&self.0);
        let updates = &mut permits.session.updates;
        updates.more = updates.more.plus(&actual.minus(charged));
        if let Some(share) = permits.share_mut() {
            let taken = Taken::of(*charged);
            share.units.iter_mut().for_each(|units| _ = units.settle(taken_at, &taken, actual, now));
        } else if taken_at >= permits.shared_since {
            permits.session.give_back(taken_at, charged.minus(actual), permits.hold);
        }
    }

    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        let permits = lock(&self.0);
        if let Some(share) = permits.share() {
            return share.forecast(start, total, costliest);
        }
        let (mut missing, mut last) = (total, start);
        if missing == 0 {
            return start;
        }
        for grant in permits.usable(start) {
            let usable = u64::from(grant.permits);
            // Replies may arrive in a different order than the store's decisions.
            last = last.max(grant.due);
            if usable >= missing {
                return last;
            }
            missing -= usable;
        }
        match permits.free.filter(|free| total >= u64::from(free.unit)) {
            Some(free) => {
                let later = missing.saturating_sub(u64::from(free.together));
                free.at.saturating_add(permits.interval.saturating_mul(later)).max(start)
            }
            None => start,
        }
    }

    fn available(&self, now: u64) -> u32 {
        let permits = lock(&self.0);
        let available = match permits.share() {
            Some(share) => share.quotas.available(now),
            None => permits.usable(now).filter(|it| it.due <= now).map(|it| u64::from(it.permits)).sum(),
        };
        u32::try_from(available).unwrap_or(u32::MAX)
    }

    fn largest(&self) -> u32 {
        lock(&self.0).largest
    }

    fn grace(&self) -> u64 {
        lock(&self.0).grace
    }

    fn unavailable(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
        let permits = lock(&self.0);
        let Lost { fault, share, .. } = permits.lost.as_ref()?;
        let is_refused = match share {
            // A request that costs more than the share can grant would block all other waiters.
            Some(share) => share.quotas.largest() < cost.get(),
            None => now < permits.query_at,
        };
        let wait = Duration::from_nanos(permits.query_at.saturating_sub(now));
        is_refused.then(|| Refusal::new(Reason::Unavailable, wait).with_cause(Arc::clone(fault)))
    }
}
