//! The permits in hand: what the store has given, each with the moments between which it may be used.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::share::Share;
use crate::{
    limit::{Bucket, Meter, Reason, Refusal, Store, nanos},
    policy::Quota,
};

/// Calls for the task that asks the store.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Since the task last looked.
    pub(super) rung: AtomicBool,
    /// There is something to tell the store, or to ask it before its time.
    pub(super) news: Notify,
    /// The task waits until so many permits are there together, which a smaller request does not have to; 0 where it does
    /// not.
    pub(super) listening: AtomicU32,
}

impl Bell {
    /// For a request of that cost.
    pub(super) fn ring(&self, cost: NonZeroU32) {
        self.rung.store(true, Ordering::SeqCst);
        if cost.get() < self.listening.load(Ordering::SeqCst) && self.listening.swap(0, Ordering::SeqCst) > 0
        {
            self.news.notify_one();
        }
    }
}

/// A meter that is filled by the store's answers. Times are in nanoseconds since the queue's origin.
#[derive(Debug)]
pub(super) struct Pool {
    grants: VecDeque<Grant>,
    /// When the first permits that are not in hand come free, at the earliest.
    free: Option<Free>,
    /// Between two permits that are not in hand, at the least.
    interval: u64,
    largest: u32,
    grace: u64,
    store: Store,
    /// While the store does not answer: when it is asked again.
    pub(super) ask_at: u64,
    pub(super) share: Option<Share>,
    /// The share is kept to until then, unless the store has been asked again and did not answer: by then the others may
    /// have it to themselves.
    share_until: u64,
    /// Permits that nobody used in time.
    unused: u64,
    bell: Arc<Bell>,
}

/// What the store said of the permits that it did not give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) at: u64,
    /// So many together were asked for: fewer may come free before.
    pub(super) unit: u32,
    /// So many may be free then, if not more.
    pub(super) together: u32,
}

/// Permits that may be used from `due` on, and no more from `until` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) due: u64,
    pub(super) until: u64,
    pub(super) permits: u32,
}

impl Pool {
    pub(super) fn new(largest: u32, interval: Duration, timeout: Duration, bell: Arc<Bell>) -> Self {
        Self {
            grants: VecDeque::new(),
            free: None,
            interval: nanos(interval),
            largest,
            grace: nanos(timeout),
            store: Store::Unasked,
            ask_at: 0,
            share: None,
            share_until: 0,
            unused: 0,
            bell,
        }
    }

    /// The store has answered: it gives these, none of which comes too late, and the next one is free then.
    pub(super) fn fill(&mut self, grants: impl IntoIterator<Item = Grant>, free: Free) {
        (self.store, self.share, self.free) = (Store::Shared, None, Some(free));
        self.grants.extend(grants);
    }

    /// The store does not answer. The share is kept to from now on; without one everybody is refused, until it is
    /// asked again.
    pub(super) fn lose(&mut self, share: impl FnOnce() -> Option<Share>, ask_at: u64, share_until: u64) {
        if self.share.is_none() {
            self.share = share();
        }
        self.share_until = share_until;
        self.store = if self.share.is_some() { Store::Fallback } else { Store::Refusing };
        self.grants.clear();
        (self.free, self.ask_at) = (None, ask_at);
    }

    pub(super) fn state(&self) -> Store {
        self.store
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.store, Store::Fallback | Store::Refusing)
    }

    /// Permits in hand that can be used, now or later.
    pub(super) fn in_hand(&self, now: u64) -> u64 {
        let usable = self.grants.iter().filter(|grant| now < grant.until);
        usable.map(|grant| u64::from(grant.permits)).sum()
    }

    /// Whether one request of that cost can be served of what is in hand, at some moment.
    pub(super) fn will_serve(&self, cost: NonZeroU32, now: u64) -> bool {
        let usable = || self.grants.iter().filter(|grant| now < grant.until);
        usable().any(|last| {
            let together = usable().filter(|grant| grant.due <= last.due && last.due < grant.until);
            together.map(|grant| u64::from(grant.permits)).sum::<u64>() >= u64::from(cost.get())
        })
    }

    /// The permits that nobody used in time since this was last asked.
    pub(super) fn take_unused(&mut self) -> u64 {
        std::mem::take(&mut self.unused)
    }

    fn forget(&mut self, now: u64) {
        while let Some(grant) = self.grants.front().filter(|grant| grant.until <= now) {
            self.unused += u64::from(grant.permits);
            self.grants.pop_front();
        }
    }

    /// Permits that may be used now.
    fn due(&self, now: u64) -> u64 {
        let usable = self.grants.iter().take_while(|grant| grant.due <= now);
        usable.map(|grant| u64::from(grant.permits)).sum()
    }
}

impl Meter for Pool {
    /// Without quotas: it is made by [`Pool::new`].
    fn new(_: &[Quota], _: Option<Arc<Bucket>>) -> Self {
        Self::new(u32::MAX, Duration::ZERO, Duration::ZERO, Arc::default())
    }

    fn shared(_: &[Quota]) -> Option<Arc<Bucket>> {
        None
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        if self.is_lost() && now >= self.ask_at {
            self.bell.ring(cost);
        }
        if let Some(share) = &mut self.share {
            return now < self.share_until && share.take(cost, now);
        }
        self.forget(now);
        if self.due(now) < u64::from(cost.get()) {
            self.bell.ring(cost);
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
            return if start < self.share_until { share.forecast(start, total) } else { start };
        }
        let (mut missing, mut last) = (total, start);
        if missing == 0 {
            return start;
        }
        for grant in self.grants.iter().filter(|grant| start < grant.until) {
            let permits = u64::from(grant.permits);
            // Of two answers the slower one may have said the later moments first.
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
            Some(share) => share.available(now),
            None => {
                let usable = self.grants.iter().filter(|grant| grant.due <= now && now < grant.until);
                usable.fold(0, |sum, grant| sum.saturating_add(grant.permits))
            }
        }
    }

    fn is_whole(&self, now: u64) -> bool {
        self.share.is_none() && self.in_hand(now) == 0
    }

    fn empty(&mut self, _: u64) {
        self.grants.clear();
    }

    /// The quotas are the store's.
    fn change(&mut self, _: &[Quota], _: u64) {}

    fn gather(&self, _: u64, due: u64, _: u64, _: u64) -> u64 {
        due
    }

    /// Whoever waits for what is not in hand is called when the store has answered.
    fn look_again(&self, due: u64, now: u64) -> u64 {
        if due > now { due } else { u64::MAX }
    }

    fn grace(&self) -> u64 {
        self.grace
    }

    fn closed(&self, cost: NonZeroU32, now: u64) -> Option<Refusal> {
        // What is more than a share would keep all others waiting.
        let beyond = self.share.as_ref().is_some_and(|share| share.largest() < cost.get());
        let refusing = beyond || self.store == Store::Refusing && now < self.ask_at;
        let wait = Duration::from_nanos(self.ask_at.saturating_sub(now));
        refusing.then(|| Refusal::new(Reason::Unavailable, wait))
    }

    fn store(&self) -> Option<Store> {
        Some(self.state())
    }
}
