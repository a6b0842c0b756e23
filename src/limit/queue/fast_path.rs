//! The fast path: a request that need not wait takes its permits without a lock.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    clock::Clock,
    counts::{Stripes, Tally},
    sync::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
use crate::{
    clock::Instant,
    error::Refusal,
    limit::{algorithm::bucket::Bucket, permit_request::PermitRequest},
};

/// The value of the arrival time while the fast path is closed. Every grant then needs the lock. No bucket has such a late
/// arrival time, because a [`Quota`](crate::Quota) bounds the time that its bucket takes to fill up.
const CLOSED: u64 = u64::MAX;

/// The maximum number of setups that the limiters of a shard share. Each serves the keys of one quota.
const MOST_SHARED: usize = 4;

/// The parts of a limiter that never change.
#[derive(Debug)]
pub(in crate::limit) struct Setup {
    pub(super) clock: Clock,
    /// The bucket of a limiter that grants permits without the lock.
    pub(super) bucket: Option<Bucket>,
    /// The counts of each thread. `None` if the limiter learns, and for a key of a [`Keyed`](crate::limit::Keyed), where
    /// stripes would take more memory than the rest of the limiter.
    stripes: Option<Box<Stripes>>,
}

/// The arrival time of the bucket while the fast path is open. Otherwise [`CLOSED`], and the algorithm stores the arrival
/// time.
#[derive(Debug)]
pub(super) struct Arrival(AtomicU64);

/// Each key of a [`Keyed`](crate::limit::Keyed) has its own `FastPath`. Fields that never change belong in [`Setup`].
#[derive(Debug)]
#[repr(C)]
pub(in crate::limit) struct FastPath {
    pub(super) setup: Arc<Setup>,
    /// The counts of the threads that have no stripe.
    tally: Tally,
    /// How long a granted permit stays valid: see [`slack`](super::wait_list::slack).
    pub(super) slack: AtomicU64,
    /// The number of waiters whose permits are granted and whose tasks are woken, but not polled yet.
    pub(super) woken: AtomicU32,
    /// Whether a server limit applies.
    pub(super) is_limited: AtomicBool,
    /// Whether the remaining permits of every response apply. `true` if the limiter has no quota, or if its algorithm
    /// learns from them.
    pub(super) reads_headers: AtomicBool,
    /// Whether the remaining permits that the server reported limit the grants even if the limiter has a quota.
    pub(super) obeys_remaining: AtomicBool,
    /// Whether the learned state changed since it was last reported.
    pub(super) has_news: AtomicBool,
}

/// The result of an attempt to take permits without the lock.
pub(super) enum FastGrant {
    Granted {
        now: u64,
    },
    /// No request waits, but the permits only become available at `due`.
    NotBefore {
        now: u64,
        due: u64,
    },
    NeedsLock,
}

impl Arrival {
    /// Creates the arrival time of a full bucket. Without a bucket, the fast path is closed.
    pub(super) fn new(has_bucket: bool) -> Self {
        Self(AtomicU64::new(if has_bucket { 0 } else { CLOSED }))
    }

    /// Closes the fast path and returns the arrival time of the bucket. Returns `None` if the fast path is already closed.
    /// Called only under the lock.
    pub(super) fn close(&self) -> Option<u64> {
        // No other thread opens or closes the fast path while the lock is held.
        let is_open = self.0.load(Ordering::Relaxed) != CLOSED;
        is_open.then(|| self.0.swap(CLOSED, Ordering::AcqRel))
    }

    /// Opens the fast path. Called only under the lock.
    pub(super) fn open(&self, arrival: u64) {
        self.0.store(arrival, Ordering::Release);
    }

    /// Returns whether the fast path is open and its bucket is full.
    pub(super) fn is_full(&self, now: u64) -> bool {
        self.0.load(Ordering::Acquire) <= now
    }

    /// Sets the arrival time of an open fast path, unless the current one is later. Called only under the lock.
    pub(super) fn postpone(&self, arrival: u64) {
        self.0.fetch_max(arrival, Ordering::AcqRel);
    }
}

impl FastPath {
    pub(super) fn new(
        clock: Clock,
        bucket: Option<Bucket>,
        learns: bool,
        (slack, has_quota): (u64, bool),
    ) -> Self {
        // A limiter that learns reads its counts at each grant, and one tally is read faster than all stripes.
        let stripes = (!learns).then(Box::default);
        Self {
            setup: Arc::new(Setup { clock, bucket, stripes }),
            tally: Tally::default(),
            slack: AtomicU64::new(slack),
            woken: AtomicU32::new(0),
            is_limited: AtomicBool::new(false),
            reads_headers: AtomicBool::new(!has_quota),
            obeys_remaining: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
        }
    }

    /// Drops the stripes of an unused limiter.
    pub(super) fn drop_stripes(&mut self) {
        if let Some(own) = Arc::get_mut(&mut self.setup) {
            own.stripes = None;
        }
    }

    /// Replaces the setup of an unused limiter with a shared one that has the same quota and the same time source.
    /// Otherwise shares the own setup.
    pub(super) fn share_setup(&mut self, own: &mut Arrival, shared: &mut Vec<Arc<Setup>>) {
        let quota = |setup: &Setup| setup.bucket.as_ref().map(|bucket| bucket.quota);
        let same_quota = shared.iter().filter(|setup| quota(setup) == quota(&self.setup));
        let mut usable = same_quota
            .filter_map(|setup| Some((Arc::clone(setup), self.setup.clock.started_after(&setup.clock)?)));
        if let Some((setup, delay)) = usable.next() {
            self.setup = setup;
            *own = Arrival(AtomicU64::new(own.0.load(Ordering::Relaxed).saturating_add(delay)));
        } else if shared.len() < MOST_SHARED {
            shared.push(Arc::clone(&self.setup));
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.setup.clock
    }

    /// Takes the permits if that needs no lock. Otherwise takes nothing.
    pub(super) fn attempt(&self, arrival: &Arrival, request: &PermitRequest) -> FastGrant {
        self.take(arrival, request.cost(), request.deadline())
    }

    #[inline]
    pub(super) fn take(
        &self,
        Arrival(shared): &Arrival,
        cost: NonZeroU32,
        deadline: Option<Instant>,
    ) -> FastGrant {
        let Setup { bucket: Some(bucket), clock, .. } = &*self.setup else { return FastGrant::NeedsLock };
        if cost.get() > 1 && cost.get() > bucket.quota.burst() {
            return FastGrant::NeedsLock;
        }
        let now = clock.now();
        if deadline.is_some_and(|deadline| self.is_over(deadline, now)) {
            return FastGrant::NeedsLock;
        }
        // Found before the arrival time is read, because a longer time until the compare-and-swap makes it fail more often.
        let own = self.own();
        let mut arrival = shared.load(Ordering::Acquire);
        let mut is_counted = false;
        let outcome = loop {
            if arrival == CLOSED {
                break FastGrant::NeedsLock;
            }
            let Some(next) = bucket.take(arrival, cost, now) else {
                break FastGrant::NotBefore { now, due: bucket.due(arrival, now, cost.get().into()) };
            };
            // Counts the permits before the compare-and-swap. A thread that closes the fast path then sees the count of
            // every earlier grant.
            if !is_counted {
                self.add(own, |tally| &tally.granted, cost.get().into());
                is_counted = true;
            }
            match shared.compare_exchange_weak(arrival, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return FastGrant::Granted { now },
                Err(changed) => arrival = changed,
            }
        };
        if is_counted {
            self.add(own, |tally| &tally.granted, u64::from(cost.get()).wrapping_neg());
        }
        outcome
    }

    fn is_over(&self, deadline: Instant, now: u64) -> bool {
        self.clock().at(deadline) < now
    }

    pub(super) fn is_late(&self, request: &PermitRequest, now: u64) -> bool {
        request.deadline().is_some_and(|deadline| self.is_over(deadline, now))
    }

    /// Returns the current time if the lock-free state shows that a permit granted at `at` is still valid.
    pub(super) fn is_valid(&self, at: u64) -> Option<u64> {
        if self.is_limited.load(Ordering::Acquire) {
            return None;
        }
        let now = self.clock().now();
        (now.saturating_sub(at) <= self.slack.load(Ordering::Acquire)).then_some(now)
    }

    /// Converts the time of a grant to an `Instant`.
    pub(in crate::limit) fn stamp(&self, at: u64) -> Instant {
        self.clock().stamp(at)
    }

    /// Returns the stripe of this thread.
    #[inline]
    fn own(&self) -> Option<&Tally> {
        self.setup.stripes.as_ref()?.own()
    }

    /// Adds `number` to a count, in this thread's `own` stripe if there is one.
    #[inline]
    fn add(&self, own: Option<&Tally>, count: impl Fn(&Tally) -> &AtomicU64, number: u64) {
        match own {
            Some(tally) => tally.add(count, number),
            None => _ = count(&self.tally).fetch_add(number, Ordering::AcqRel),
        }
    }

    fn sum(&self, count: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        let stripes = self.setup.stripes.iter().flat_map(|stripes| stripes.iter());
        let counts = stripes.chain([&self.tally]).map(|tally| count(tally).load(Ordering::Acquire));
        counts.fold(0, u64::wrapping_add)
    }

    #[inline]
    pub(super) fn count_granted(&self, cost: NonZeroU32) {
        self.add(self.own(), |tally| &tally.granted, cost.get().into());
    }

    /// Counts permits as released, if this limiter grants permits without the lock. Such a limiter does not learn. Otherwise
    /// returns `false`.
    #[inline]
    pub(in crate::limit) fn release_without_lock(&self, cost: NonZeroU32) -> bool {
        let is_lock_free = self.setup.bucket.is_some();
        if is_lock_free {
            self.release(cost);
        }
        is_lock_free
    }

    #[inline]
    pub(super) fn release(&self, cost: NonZeroU32) {
        self.add(self.own(), |tally| &tally.released, cost.get().into());
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Refusal {
        self.add(self.own(), |tally| &tally.refused, 1);
        refusal
    }

    pub(super) fn granted(&self) -> u64 {
        self.sum(|tally| &tally.granted)
    }

    pub(in crate::limit) fn released(&self) -> u64 {
        self.sum(|tally| &tally.released)
    }

    pub(super) fn refused(&self) -> u64 {
        self.sum(|tally| &tally.refused)
    }

    pub(super) fn in_flight(&self) -> u64 {
        // Reads the released permits before the granted ones, because every released permit was granted earlier. Their
        // difference is therefore never too small.
        let released = self.released();
        self.granted().saturating_sub(released)
    }
}
