//! The permits that the store has granted to this process, each with the moments between which it may be used.

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

use super::{fallback::Share, session::Session};
use crate::{
    error::{Reason, Refusal},
    limit::queue::external::{Algorithm, Bucket, nanos},
    policy::Quota,
};

/// The state of a [`RedisLimiter`](super::RedisLimiter)'s store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// No exchange yet.
    NotQueried,
    /// The store replies. The quota is shared.
    Shared,
    /// The store does not reply. The process uses its share of the quota.
    Fallback,
    /// The store does not reply. Requests are refused.
    Refusing,
}

/// Wakes the task that queries the store.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Rung since the task last looked.
    pub(super) rung: AtomicBool,
    /// There is something to report to the store, or to query earlier than planned.
    pub(super) news: Notify,
}

/// An algorithm that the store's replies fill. Times are nanoseconds since the queue's origin.
pub(super) struct Permits {
    grants: VecDeque<Grant>,
    /// The store's forecast for the permits that it did not grant.
    pub(super) free: Option<Free>,
    /// The least time between two such permits.
    interval: u64,
    largest: u32,
    grace: u64,
    pub(super) store: Store,
    /// No query before this moment.
    pub(super) query_at: u64,
    pub(super) share: Option<Share>,
    /// The share may be used until then, unless another query fails. After that the other processes may use the whole
    /// quota.
    share_until: u64,
    /// Permits that expired unused.
    unused: u32,
    bell: Arc<Bell>,
    /// The number of permits that the task waits for together. A cheaper request wakes it. 0 if it does not wait.
    pub(super) listening: u32,
    pub(super) session: Session,
}

/// When the first permit that the store did not grant becomes available, at the earliest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) at: u64,
    /// The number of permits that were requested together. Fewer may be available earlier.
    pub(super) unit: u32,
    /// The least number of permits that may be available then.
    pub(super) together: u32,
}

/// Permits that may be used from `due` until `until`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) due: u64,
    pub(super) until: u64,
    pub(super) permits: u32,
}

impl Permits {
    pub(super) fn new(largest: u32, interval: u64, timeout: Duration, bell: Arc<Bell>) -> Self {
        Self {
            grants: VecDeque::new(),
            free: None,
            interval,
            largest,
            grace: nanos(timeout),
            store: Store::NotQueried,
            query_at: 0,
            share: None,
            share_until: 0,
            unused: 0,
            bell,
            listening: 0,
            session: Session::default(),
        }
    }

    /// The store has replied with these grants, none of which is late.
    pub(super) fn fill(&mut self, grants: impl IntoIterator<Item = Grant>, free: Free) {
        (self.store, self.share, self.free) = (Store::Shared, None, Some(free));
        self.grants.extend(grants);
    }

    /// The store does not reply. Until the next query the share applies, or every request is refused.
    pub(super) fn lose(&mut self, share: impl FnOnce() -> Option<Share>, query_at: u64, share_until: u64) {
        if self.share.is_none() {
            self.share = share();
        }
        self.share_until = share_until;
        self.store = if self.share.is_some() { Store::Fallback } else { Store::Refusing };
        self.grants.clear();
        (self.free, self.query_at) = (None, query_at);
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.store, Store::Fallback | Store::Refusing)
    }

    /// The grants that can be used, now or later.
    fn usable(&self, now: u64) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| now < grant.until)
    }

    /// The permits that can be used, now or later.
    pub(super) fn in_hand(&self, now: u64) -> u64 {
        sum(self.usable(now))
    }

    /// Whether the permits in hand can serve one request of this cost at some moment.
    pub(super) fn will_serve(&self, cost: NonZeroU32, now: u64) -> bool {
        self.usable(now).any(|last| {
            let together = self.usable(now).filter(|grant| grant.due <= last.due && last.due < grant.until);
            sum(together) >= u64::from(cost.get())
        })
    }

    /// Wakes the task for a request of this cost.
    fn ring(&mut self, cost: NonZeroU32) {
        self.bell.rung.store(true, Ordering::SeqCst);
        if cost.get() < self.listening {
            self.listening = 0;
            self.bell.news.notify_one();
        }
    }

    /// The permits that expired unused since the last call.
    pub(super) fn take_unused(&mut self) -> u32 {
        std::mem::take(&mut self.unused)
    }
}

fn sum<'a>(grants: impl Iterator<Item = &'a Grant>) -> u64 {
    grants.map(|grant| u64::from(grant.permits)).sum()
}

impl Algorithm for Permits {
    /// [`Permits::new`] creates the ones that are used.
    fn new(_: &[Quota], _: Option<Arc<Bucket>>) -> Self {
        Self::new(u32::MAX, 0, Duration::ZERO, Arc::default())
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        if self.is_lost() && now >= self.query_at {
            self.ring(cost);
        }
        if let Some(share) = &mut self.share {
            return now < self.share_until && share.take(cost, now);
        }
        while let Some(expired) = self.grants.front().filter(|grant| grant.until <= now) {
            self.unused = self.unused.saturating_add(expired.permits);
            self.grants.pop_front();
        }
        if sum(self.grants.iter().take_while(|grant| grant.due <= now)) < u64::from(cost.get()) {
            self.ring(cost);
            return false;
        }
        let mut missing = cost.get();
        while let Some(grant) = self.grants.front_mut().filter(|_| missing > 0) {
            let taken = grant.permits.min(missing);
            (grant.permits, missing) = (grant.permits - taken, missing - taken);
            if grant.permits == 0 {
                self.grants.pop_front();
            }
        }
        true
    }

    fn forecast(&self, start: u64, total: u64) -> u64 {
        if let Some(share) = &self.share {
            return if start < self.share_until { share.algorithm.forecast(start, total) } else { start };
        }
        let (mut missing, mut last) = (total, start);
        if missing == 0 {
            return start;
        }
        for grant in self.usable(start) {
            let permits = u64::from(grant.permits);
            // Replies may arrive in another order than the store decided.
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

    fn largest(&self) -> u32 {
        self.largest
    }

    fn available(&self, now: u64) -> u32 {
        match &self.share {
            Some(share) => share.algorithm.available(now),
            None => u32::try_from(sum(self.usable(now).filter(|grant| grant.due <= now))).unwrap_or(u32::MAX),
        }
    }

    /// A waiter whose permits are not in hand is woken when the store has replied.
    fn poll_at(&self, due: u64, now: u64) -> u64 {
        if due > now { due } else { u64::MAX }
    }

    fn grace(&self) -> u64 {
        self.grace
    }

    fn unavailable(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
        // A cost above the share would block all other waiters.
        let beyond = self.share.as_ref().is_some_and(|share| share.algorithm.largest() < cost.get());
        let refusing = beyond || self.store == Store::Refusing && now < self.query_at;
        let wait = Duration::from_nanos(self.query_at.saturating_sub(now));
        refusing.then(|| Refusal::new(Reason::Unavailable, wait))
    }
}
