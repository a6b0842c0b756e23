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

/// The arrival time of a closed fast path: grants need the lock.
const CLOSED: u64 = u64::MAX;

/// The parts of a limiter that never change.
#[derive(Debug)]
pub(in crate::limit) struct Setup {
    pub(super) clock: Clock,
    /// The bucket of a limiter that grants permits without the lock.
    pub(super) bucket: Option<Bucket>,
    /// `None` if all threads use the limiter's own tally: for a limiter whose grants need the lock, and for a key of a
    /// [`Keyed`](crate::limit::Keyed), because the stripes take more memory than the rest of a limiter.
    stripes: Option<Stripes>,
}

/// The fields are few, because each key of a [`Keyed`](crate::limit::Keyed) has them.
#[derive(Debug)]
pub(in crate::limit) struct FastPath {
    pub(super) setup: Arc<Setup>,
    /// The arrival time of the bucket while the fast path is open, or [`CLOSED`]. While it is closed, the algorithm has the
    /// arrival time.
    arrival: AtomicU64,
    /// The counts of the threads that have no stripe.
    tally: Tally,
    /// How long a granted permit stays valid: see [`slack`](super::wait_list::slack).
    pub(super) slack: AtomicU64,
    /// The number of waiters whose permits are granted and whose tasks are woken, but not polled yet.
    pub(super) woken: AtomicU32,
    /// Whether a server limit applies.
    pub(super) is_limited: AtomicBool,
    /// Whether the remaining permits of every response apply, because the limiter has no quota, or because the algorithm
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

impl FastPath {
    /// Creates an open fast path if there is a bucket.
    pub(super) fn new(clock: Clock, bucket: Option<Bucket>, slack: u64, has_quota: bool) -> Self {
        let (arrival, stripes) = bucket.as_ref().map_or((CLOSED, None), |_| (0, Some(Stripes::default())));
        Self {
            arrival: AtomicU64::new(arrival),
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

    /// Uses the `shared` setup if it is equal, and otherwise replaces it. Called only before the first request.
    pub(super) fn share_setup(&mut self, shared: &mut Option<Arc<Setup>>) {
        let Some(own) = Arc::get_mut(&mut self.setup) else { return };
        own.stripes = None;
        let quota = |setup: &Setup| setup.bucket.as_ref().map(|bucket| bucket.quota);
        let equal = shared.as_ref().filter(|shared| quota(shared) == quota(own));
        let delay = equal.and_then(|equal| own.clock.started_after(&equal.clock));
        match (&shared, delay) {
            (Some(shared), Some(delay)) => {
                self.setup = Arc::clone(shared);
                let arrival = self.arrival.load(Ordering::Relaxed);
                self.arrival = AtomicU64::new(arrival.saturating_add(delay));
            }
            _ => *shared = Some(Arc::clone(&self.setup)),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.setup.clock
    }

    /// Takes the permits if that needs no lock. Otherwise takes nothing.
    pub(super) fn attempt(&self, request: &PermitRequest) -> FastGrant {
        self.take(request.cost(), request.deadline())
    }

    #[inline]
    pub(super) fn take(&self, cost: NonZeroU32, deadline: Option<Instant>) -> FastGrant {
        let Setup { bucket: Some(bucket), clock, .. } = &*self.setup else { return FastGrant::NeedsLock };
        if cost.get() > 1 && cost.get() > bucket.quota.burst() {
            return FastGrant::NeedsLock;
        }
        let now = clock.now();
        if deadline.is_some_and(|deadline| self.is_over(deadline, now)) {
            return FastGrant::NeedsLock;
        }
        let mut arrival = self.arrival.load(Ordering::Acquire);
        let mut is_counted = false;
        let outcome = loop {
            if arrival == CLOSED {
                break FastGrant::NeedsLock;
            }
            let Some(next) = bucket.take(arrival, cost, now) else {
                break FastGrant::NotBefore { now, due: bucket.due(arrival, now, cost.get().into()) };
            };
            // Counts the permits before taking them, so that the thread that closes the fast path counts all permits
            // granted earlier as in flight.
            if !is_counted {
                self.count_granted(cost);
                is_counted = true;
            }
            match self.arrival.compare_exchange_weak(arrival, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return FastGrant::Granted { now },
                Err(changed) => arrival = changed,
            }
        };
        if is_counted {
            self.add(|tally| &tally.granted, u64::from(cost.get()).wrapping_neg());
        }
        outcome
    }

    fn is_over(&self, deadline: Instant, now: u64) -> bool {
        self.clock().at(deadline) < now
    }

    pub(super) fn is_late(&self, request: &PermitRequest, now: u64) -> bool {
        request.deadline().is_some_and(|deadline| self.is_over(deadline, now))
    }

    /// Closes the fast path and returns the arrival time of the bucket. Returns `None` if the fast path is already closed.
    /// Called only under the lock.
    pub(super) fn close(&self) -> Option<u64> {
        // No other thread opens or closes the fast path while the lock is held.
        let is_open = self.arrival.load(Ordering::Relaxed) != CLOSED;
        is_open.then(|| self.arrival.swap(CLOSED, Ordering::AcqRel))
    }

    /// Opens the fast path. Called only under the lock.
    pub(super) fn open(&self, arrival: u64) {
        self.arrival.store(arrival, Ordering::Release);
    }

    /// Returns whether the fast path is open and its bucket is full.
    pub(super) fn is_full(&self, now: u64) -> bool {
        self.arrival.load(Ordering::Acquire) <= now
    }

    /// Sets the arrival time of an open fast path, unless the current one is later. Called only under the lock.
    pub(super) fn postpone(&self, arrival: u64) {
        self.arrival.fetch_max(arrival, Ordering::AcqRel);
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

    #[inline]
    fn stripe(&self) -> Option<&Tally> {
        self.setup.stripes.as_ref()?.own()
    }

    #[inline]
    fn add(&self, count: impl Fn(&Tally) -> &AtomicU64, number: u64) {
        match self.stripe() {
            Some(tally) => tally.add(count, number),
            None => _ = count(&self.tally).fetch_add(number, Ordering::AcqRel),
        }
    }

    fn sum(&self, count: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        let stripes = self.setup.stripes.iter().flat_map(Stripes::iter);
        let counts = stripes.chain([&self.tally]).map(|tally| count(tally).load(Ordering::Acquire));
        counts.fold(0, u64::wrapping_add)
    }

    #[inline]
    pub(super) fn count_granted(&self, cost: NonZeroU32) {
        self.add(|tally| &tally.granted, cost.get().into());
    }

    /// Releases permits that were not sent. Returns `false` if the limiter has no stripe for this thread.
    #[inline]
    pub(in crate::limit) fn release_in_stripe(&self, cost: NonZeroU32) -> bool {
        let stripe = self.stripe();
        if let Some(tally) = stripe {
            tally.add(|tally| &tally.released, cost.get().into());
        }
        stripe.is_some()
    }

    #[inline]
    pub(super) fn release(&self, cost: NonZeroU32) {
        self.add(|tally| &tally.released, cost.get().into());
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Refusal {
        self.add(|tally| &tally.refused, 1);
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
