//! The permits that the store has granted to this process. Each permit has a start time and an expiry.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{fallback::Share, session::Session, settings::Settings};
use crate::{
    error::{Reason, Refusal},
    policy::{Amounts, nanos},
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
    /// Whether a query was requested since the task last checked.
    pub(super) requested: AtomicBool,
    /// Wakes the task to report an update, or to query earlier than planned.
    pub(super) notify: Notify,
}

/// The permits from the store's replies. Times are nanoseconds since the limiter was created.
pub(super) struct Permits {
    leases: VecDeque<Lease>,
    /// The store's forecast of permits that it has not granted yet.
    pub(super) free: Option<Free>,
    /// The shortest time between two permits that the store forecasts.
    interval: u64,
    pub(super) largest: u32,
    pub(super) grace: u64,
    hold: u64,
    pub(super) store: Store,
    /// Why the last query failed. The text contains no secret.
    fault: Option<Arc<str>>,
    /// The earliest time of the next query to the store.
    pub(super) query_at: u64,
    pub(super) share: Option<Share>,
    /// The time until which the process may use its share. Each further failed query postpones this time. After this
    /// time, the other processes may use the whole quota.
    share_until: u64,
    /// When the last share ended. The store counts no amounts that were taken from the share.
    shared_since: u64,
    /// The number of permits that expired unused.
    unused: u32,
    signal: Arc<TaskSignal>,
    /// A request for fewer permits than this number wakes the waiting task. 0 if no request wakes the task.
    pub(super) listening: u32,
    pub(super) session: Session,
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
            largest: settings.largest(),
            grace: nanos(settings.timeout),
            hold: nanos(settings.hold),
            store: Store::NotQueried,
            fault: None,
            query_at: 0,
            share: None,
            share_until: 0,
            shared_since: 0,
            unused: 0,
            signal,
            listening: 0,
            session: Session::default(),
        }
    }

    /// Adds the grants of a reply from the store. The caller omits grants that arrived too late.
    pub(super) fn fill(&mut self, grants: impl IntoIterator<Item = Lease>, free: Free, now: u64) {
        if self.share.is_some() {
            self.shared_since = now;
        }
        (self.store, self.share, self.free) = (Store::Shared, None, Some(free));
        self.fault = None;
        self.leases.extend(grants);
    }

    /// Records that the store does not reply, because of `fault`. Until the next query, requests use the share. Without
    /// a share, every request is refused.
    pub(super) fn fail(
        &mut self,
        fault: Arc<str>,
        share: impl FnOnce() -> Option<Share>,
        query_at: u64,
        share_until: u64,
    ) {
        self.fault = Some(fault);
        if self.share.is_none() {
            self.share = share();
        }
        self.share_until = share_until;
        self.store = if self.share.is_some() { Store::Fallback } else { Store::Refusing };
        self.leases.clear();
        (self.free, self.query_at) = (None, query_at);
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.store, Store::Fallback | Store::Refusing)
    }

    /// Returns the grants that can be used now or later.
    fn usable(&self, now: u64) -> impl Iterator<Item = &Lease> {
        self.leases.iter().filter(move |grant| now < grant.until)
    }

    /// Returns the number of permits that can be used now or later.
    pub(super) fn in_hand(&self, now: u64) -> u64 {
        sum(self.usable(now))
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
        self.signal.requested.store(true, Ordering::SeqCst);
        if cost.get() < self.listening {
            self.listening = 0;
            self.signal.notify.notify_one();
        }
    }

    /// Returns the number of permits that expired unused since the last call.
    pub(super) fn take_unused(&mut self) -> u32 {
        std::mem::take(&mut self.unused)
    }
}

impl Amounts {
    /// Returns the sums of both amounts of each unit.
    pub(super) fn plus(self, other: &Self) -> Self {
        self.zip(other, u32::saturating_add)
    }

    /// Returns by how much each amount exceeds the other one.
    pub(super) fn minus(self, other: &Self) -> Self {
        self.zip(other, u32::saturating_sub)
    }
}

fn suffice<'a>(grants: impl Iterator<Item = &'a Lease>, cost: NonZeroU32, amounts: &Amounts) -> bool {
    let add = |(permits, amounts): (u64, Amounts), grant: &Lease| {
        (permits + u64::from(grant.permits), amounts.plus(&grant.amounts))
    };
    let (permits, held) = grants.fold((0, Amounts::NONE), add);
    permits >= u64::from(cost.get()) && amounts.minus(&held).is_empty()
}

fn sum<'a>(grants: impl Iterator<Item = &'a Lease>) -> u64 {
    grants.map(|grant| u64::from(grant.permits)).sum()
}

impl Permits {
    pub(super) fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool {
        if self.is_lost() && now >= self.query_at {
            self.request_query(cost);
        }
        if let Some(share) = &mut self.share {
            return now < self.share_until && share.take(cost, amounts, now);
        }
        while let Some(expired) = self.leases.front().filter(|grant| grant.until <= now) {
            self.unused = self.unused.saturating_add(expired.permits);
            self.session.give_back(expired.due, expired.amounts, self.hold);
            self.leases.pop_front();
        }
        if !suffice(self.leases.iter().take_while(|grant| grant.due <= now), cost, amounts) {
            self.request_query(cost);
            return false;
        }
        let (mut missing, mut lacking) = (cost.get(), *amounts);
        for grant in self.leases.iter_mut().take_while(|grant| grant.due <= now) {
            let (permits, amounts) = (grant.permits.min(missing), grant.amounts.zip(&lacking, u32::min));
            (grant.permits, missing) = (grant.permits - permits, missing - permits);
            (grant.amounts, lacking) = (grant.amounts.minus(&amounts), lacking.minus(&amounts));
        }
        self.leases.retain(|grant| grant.permits > 0 || !grant.amounts.is_empty());
        true
    }

    /// Replaces the amounts of a request. The next query reports the difference.
    pub(super) fn settle(&mut self, taken_at: u64, charged: &Amounts, actual: &Amounts, now: u64) {
        let settled = &mut self.session.settled;
        settled.more = settled.more.plus(&actual.minus(charged));
        if let Some(share) = &mut self.share {
            share.units.iter_mut().for_each(|units| _ = units.settle(taken_at, charged, actual, now));
        } else if taken_at >= self.shared_since {
            self.session.give_back(taken_at, charged.minus(actual), self.hold);
        }
    }

    pub(super) fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64 {
        if let Some(share) = &self.share {
            return if start < self.share_until {
                share.quotas.due(start, total, costliest.into())
            } else {
                start
            };
        }
        let (mut missing, mut last) = (total, start);
        if missing == 0 {
            return start;
        }
        for grant in self.usable(start) {
            let permits = u64::from(grant.permits);
            // Replies may arrive in a different order than the store's decisions.
            last = last.max(grant.due);
            if permits >= missing {
                return last;
            }
            missing -= permits;
        }
        match self.free.filter(|free| total >= u64::from(free.unit)) {
            Some(free) => {
                let later = missing.saturating_sub(u64::from(free.together));
                free.at.saturating_add(self.interval.saturating_mul(later)).max(start)
            }
            None => start,
        }
    }

    pub(super) fn available(&self, now: u64) -> u32 {
        match &self.share {
            Some(share) => u32::try_from(share.quotas.available(now)).unwrap_or(u32::MAX),
            None => u32::try_from(sum(self.usable(now).filter(|grant| grant.due <= now))).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn unavailable(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
        // A request that costs more than the share can grant is refused, because it would block all other waiters.
        let beyond = self.share.as_ref().is_some_and(|share| share.quotas.largest() < cost.get());
        let refusing = beyond || self.store == Store::Refusing && now < self.query_at;
        let wait = Duration::from_nanos(self.query_at.saturating_sub(now));
        refusing.then(|| {
            let refusal = Refusal::new(Reason::Unavailable, wait);
            match &self.fault {
                Some(fault) => refusal.with_cause(Arc::clone(fault)),
                None => refusal,
            }
        })
    }
}
