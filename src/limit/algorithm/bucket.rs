//! The token bucket of one quota. It applies governor's arithmetic to its own state, with one compare-and-swap for each
//! grant.

use std::{
    cell::Cell,
    hash::{Hash, Hasher},
    num::NonZeroU32,
    ops::Add,
    sync::Arc,
};

use governor::{
    clock::{Clock, Reference},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::StateStore,
};

use crate::{
    limit::queue::{
        clock::nanos,
        counts::Counts,
        sync::{AtomicU64, Ordering},
    },
    policy::Quota,
};

/// The fields that every grant writes are adjacent, so that contending threads exchange only one cache line.
#[derive(Debug)]
pub struct Bucket {
    arrival: Arrival,
    pub(in crate::limit) counts: Counts,
    governor: governor::RateLimiter<Arrival, InPlace, Given, NoOpMiddleware<Moment>>,
    pub(in crate::limit) quota: Quota,
    pub(super) interval: u64,
    /// The time that an empty bucket takes to fill up.
    pub(super) whole: u64,
}

/// The theoretical arrival time of the next permit. The bucket is full if this time lies in the past.
///
/// This state replaces governor's own state, which cannot be read. Forecasts and changes of quotas must read the state.
#[derive(Debug, Default)]
struct Arrival(AtomicU64);

/// An arrival time so late that the bucket grants nothing. Adding to it does not overflow.
const CLOSED: u64 = u64::MAX / 2;

/// The latest arrival time that a change of quotas, or a grant of a paced window, sets. Adding to it does not overflow.
pub(super) const LATEST: u64 = u64::MAX / 4;

/// Governor looks up the state of a bucket by a key. This store needs no lookup, because the state itself is the key.
#[derive(Debug)]
struct InPlace;

impl Clone for Arrival {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Acquire)))
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.0.load(Ordering::Acquire) == other.0.load(Ordering::Acquire)
    }
}

impl Eq for Arrival {}

impl Hash for Arrival {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.load(Ordering::Acquire).hash(state);
    }
}

impl StateStore for InPlace {
    type Key = Arrival;

    fn measure_and_replace<T, F, E>(&self, arrival: &Arrival, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut before = arrival.0.load(Ordering::Acquire);
        loop {
            let (outcome, after) = decide(Some(before.into()))?;
            match arrival.0.compare_exchange_weak(before, after.into(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(outcome),
                Err(now) => before = now,
            }
        }
    }
}

/// Nanoseconds since the limiter's origin. Governor would count from the creation of each bucket. With a common origin,
/// a change of quotas can carry an arrival time from one bucket to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(u64);

impl Reference for Moment {
    fn duration_since(&self, _start: Self) -> Nanos {
        self.0.into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        Self(self.0.saturating_sub(duration.into()))
    }
}

impl Add<Nanos> for Moment {
    type Output = Self;

    fn add(self, since_origin: Nanos) -> Self {
        Self(since_origin.into())
    }
}

/// A clock that returns the time that the caller has already read. Reading the real clock again would cost as much as
/// the rest of a grant.
#[derive(Debug, Clone)]
struct Given;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

impl Clock for Given {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Moment(NOW.get())
    }
}

impl Bucket {
    /// Creates a bucket. Returns `None` only if the interval or the burst is zero, which no `Quota` has.
    pub(super) fn new(quota: Quota, arrival: u64) -> Option<Arc<Self>> {
        let interval = quota.refill_interval();
        let limits = governor::Quota::with_period(interval)?.allow_burst(NonZeroU32::new(quota.burst())?);
        Some(Arc::new(Self {
            arrival: Arrival(AtomicU64::new(arrival)),
            counts: Counts::default(),
            governor: governor::RateLimiter::new(limits, InPlace, Given),
            quota,
            interval: nanos(interval),
            whole: nanos(interval).saturating_mul(u64::from(quota.burst())),
        }))
    }

    fn arrival(&self) -> u64 {
        self.arrival.0.load(Ordering::Acquire)
    }

    /// Sets the arrival time to `arrival`, unless the current one is later.
    pub(super) fn postpone(&self, arrival: u64) {
        self.arrival.0.fetch_max(arrival, Ordering::AcqRel);
    }

    /// Adds `delay` to the arrival time. Called only under the lock, after a change of quotas has closed the fast path.
    pub(super) fn delay(&self, delay: u64) {
        self.postpone(self.arrival().saturating_add(delay).min(LATEST));
    }

    /// Closes this bucket, because another bucket replaces it, and returns its arrival time. Every later
    /// [`take`](Self::take) of this bucket fails, so the caller of `take` continues under the lock.
    pub(super) fn close(&self) -> u64 {
        self.arrival.0.swap(CLOSED, Ordering::AcqRel)
    }

    pub(in crate::limit) fn is_full(&self, now: u64) -> bool {
        self.arrival() <= now
    }

    /// Returns whether another bucket has replaced this one.
    pub(in crate::limit) fn is_closed(&self) -> bool {
        self.arrival() >= CLOSED
    }

    /// Returns when `cost` permits become available, or `None` if another bucket has replaced this one.
    pub(in crate::limit) fn due(&self, now: u64, cost: NonZeroU32) -> Option<u64> {
        let arrival = self.arrival();
        (arrival < CLOSED).then(|| self.after(arrival, now, u64::from(cost.get())))
    }

    /// Takes `cost` permits if they are available. Returns whether it took them.
    pub(in crate::limit) fn take(&self, cost: NonZeroU32, now: u64) -> bool {
        NOW.set(now);
        match cost.get() {
            1 => self.governor.check_key(&self.arrival).is_ok(),
            // Governor returns its outer error if the cost exceeds the burst. The queue refuses such a request before
            // it reaches the bucket.
            _ => self.governor.check_key_n(&self.arrival, cost).is_ok_and(|outcome| outcome.is_ok()),
        }
    }

    pub(super) fn forecast(&self, start: u64, total: u64) -> u64 {
        self.after(self.arrival(), start, total)
    }

    fn after(&self, arrival: u64, start: u64, total: u64) -> u64 {
        let last = arrival.max(start).saturating_add(self.interval.saturating_mul(total));
        last.saturating_sub(self.whole).max(start)
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        let spent = self.arrival().saturating_sub(now).div_ceil(self.interval);
        u64::from(self.quota.burst()).saturating_sub(spent)
    }
}
