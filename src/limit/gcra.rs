//! The arithmetic of the token bucket: governor's, over a state of ours.

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

use super::{
    meter::Meter,
    nanos,
    sync::{AtomicU64, Ordering},
};
use crate::policy::Quota;

/// One bucket for each quota.
#[derive(Debug)]
pub struct Gcra {
    buckets: Vec<Arc<Bucket>>,
    /// Where the arrivals stood before, to be put back. Kept, so that no grant allocates.
    before: Vec<u64>,
}

/// One quota's bucket: governor's arithmetic, one compare-and-swap a grant. What is written for every permit stands
/// side by side: two threads that contend pass one cache line to and fro.
#[derive(Debug)]
pub struct Bucket {
    arrival: Arrival,
    /// See [`Core`](super::core::Core).
    pub(super) tally: AtomicU64,
    governor: governor::RateLimiter<Arrival, InPlace, Told, NoOpMiddleware<Moment>>,
    quota: Quota,
    interval: u64,
    /// The time in which an empty bucket fills up.
    whole: u64,
}

/// The theoretical arrival time of the next permit: the bucket is full when it lies in the past.
///
/// Governor's own state can be neither read nor put back, which several quotas at once and a change of the
/// quota need.
#[derive(Debug, Default)]
struct Arrival(AtomicU64);

impl Arrival {
    /// So far off that every question is answered with no, and that sums with it don't overflow.
    const CLOSED: u64 = u64::MAX / 2;

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, arrival: u64) {
        self.0.store(arrival, Ordering::Release);
    }

    /// Ends it: whoever was about to spend by compare-and-swap fails from here on, and asks under the lock.
    fn close(&self) -> u64 {
        self.0.swap(Self::CLOSED, Ordering::AcqRel)
    }
}

/// Governor looks a state up by its key, which has to be comparable for that. Ours is handed over itself.
#[derive(Debug)]
struct InPlace;

impl Clone for Arrival {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.get()))
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Arrival {}

impl Hash for Arrival {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl StateStore for InPlace {
    type Key = Arrival;

    fn measure_and_replace<T, F, E>(&self, arrival: &Arrival, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut before = arrival.get();
        loop {
            let (outcome, after) = decide(Some(before.into()))?;
            match arrival.0.compare_exchange_weak(before, after.into(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(outcome),
                Err(now) => before = now,
            }
        }
    }
}

/// Nanoseconds since the limiter's origin. Governor counts from the moment when its bucket was made, ours from
/// the origin, so that an arrival can be carried from one bucket to the next: its start does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

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

/// Governor asks a clock, and the caller has read one already: reading it costs as much as the rest together.
#[derive(Debug, Clone)]
struct Told;

/// How late a timer may fire, twice over: 2 ms, in nanoseconds. The bucket must not run over meanwhile.
const LATE: u64 = 2_000_000;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

impl Clock for Told {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Moment(NOW.get())
    }
}

impl Bucket {
    fn new(quota: Quota, arrival: u64) -> Option<Arc<Self>> {
        // None only for an interval or a burst of zero, neither of which a `Quota` can have.
        let interval = quota.refill_interval();
        let limits = governor::Quota::with_period(interval)?.allow_burst(NonZeroU32::new(quota.burst())?);
        Some(Arc::new(Self {
            arrival: Arrival(AtomicU64::new(arrival)),
            tally: AtomicU64::new(0),
            governor: governor::RateLimiter::new(limits, InPlace, Told),
            quota,
            interval: nanos(interval),
            whole: nanos(interval).saturating_mul(u64::from(quota.burst())),
        }))
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) fn burst(&self) -> u32 {
        self.quota.burst()
    }

    /// Nothing is owed.
    pub(super) fn is_full(&self, now: u64) -> bool {
        self.arrival.get() <= now
    }

    /// Another quota has taken its place.
    pub(super) fn is_closed(&self) -> bool {
        self.arrival.get() >= Arrival::CLOSED
    }

    /// When `cost` permits come free; none when another quota has taken its place.
    pub(super) fn due(&self, now: u64, cost: NonZeroU32) -> Option<u64> {
        let arrival = self.arrival.get();
        (arrival < Arrival::CLOSED).then(|| self.after(arrival, now, u64::from(cost.get())))
    }

    /// Spends `cost` permits where they are there.
    pub(super) fn take(&self, cost: NonZeroU32, now: u64) -> bool {
        NOW.set(now);
        match cost.get() {
            1 => self.governor.check_key(&self.arrival).is_ok(),
            // A cost over the burst comes free never; the queue has refused it before.
            _ => self.governor.check_key_n(&self.arrival, cost).is_ok_and(|outcome| outcome.is_ok()),
        }
    }

    fn forecast(&self, start: u64, total: u64) -> u64 {
        self.after(self.arrival.get(), start, total)
    }

    fn after(&self, arrival: u64, start: u64, total: u64) -> u64 {
        let last = arrival.max(start).saturating_add(self.interval.saturating_mul(total));
        last.saturating_sub(self.whole).max(start)
    }

    fn spent(&self, now: u64) -> u64 {
        self.arrival.get().saturating_sub(now).div_ceil(self.interval)
    }
}

impl Meter for Gcra {
    fn new(quotas: &[Quota], shared: Option<Arc<Bucket>>) -> Self {
        let buckets = match shared {
            Some(only) => vec![only],
            None => quotas.iter().filter_map(|quota| Bucket::new(*quota, 0)).collect(),
        };
        Self { buckets, before: Vec::new() }
    }

    fn shared(quotas: &[Quota]) -> Option<Arc<Bucket>> {
        match quotas {
            [only] => Bucket::new(*only, 0),
            _ => None,
        }
    }

    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool {
        if let [only] = self.buckets.as_slice() {
            return only.take(cost, now);
        }
        // With several buckets the lock is the only way in, so that what was taken can be put back.
        self.before.clear();
        self.before.extend(self.buckets.iter().map(|bucket| bucket.arrival.get()));
        if self.buckets.iter().all(|bucket| bucket.take(cost, now)) {
            return true;
        }
        for (bucket, arrival) in self.buckets.iter().zip(&self.before) {
            bucket.arrival.set(*arrival);
        }
        false
    }

    fn forecast(&self, start: u64, total: u64) -> u64 {
        self.buckets.iter().map(|bucket| bucket.forecast(start, total)).max().unwrap_or(start)
    }

    fn largest(&self) -> u32 {
        self.buckets.iter().map(|bucket| bucket.burst()).min().unwrap_or(u32::MAX)
    }

    fn available(&self, now: u64) -> u32 {
        let left = |bucket: &Arc<Bucket>| u64::from(bucket.burst()).saturating_sub(bucket.spent(now));
        self.buckets.iter().map(left).min().map_or(u32::MAX, |left| left as u32)
    }

    fn is_whole(&self, now: u64) -> bool {
        self.buckets.iter().all(|bucket| bucket.is_full(now))
    }

    fn empty(&mut self, now: u64) {
        for bucket in &self.buckets {
            bucket.arrival.0.fetch_max(now.saturating_add(bucket.whole), Ordering::AcqRel);
        }
    }

    fn change(&mut self, quotas: &[Quota], now: u64) {
        if quotas.iter().eq(self.buckets.iter().map(|bucket| &bucket.quota)) {
            return;
        }
        // Closed first, and read as they close: whatever was granted by then is counted.
        let close = |old: &Arc<Bucket>| (Arc::clone(old), old.arrival.close().saturating_sub(now));
        let closed: Vec<_> = self.buckets.iter().map(close).collect();
        let after = |quota: &Quota| {
            let interval = nanos(quota.refill_interval());
            let whole = interval.saturating_mul(u64::from(quota.burst()));
            // In parts of a permit, or each change would cost the permit that was about to come back.
            let owed = closed.iter().map(|(old, missing)| {
                let left = old.whole.saturating_sub(*missing);
                // A larger burst is not there at once, or the window would have the old one and the new one in it.
                let taken = whole.saturating_sub(scaled(left, interval, old.interval, u128::div_euclid));
                scaled(*missing, interval, old.interval, u128::div_ceil).max(taken)
            });
            now.saturating_add(owed.max().unwrap_or(0)).min(Arrival::CLOSED / 2)
        };
        self.buckets = quotas.iter().filter_map(|quota| Bucket::new(*quota, after(quota))).collect();
    }

    fn gather(&self, cost: u64, due: u64, next: u64, until: u64) -> u64 {
        // When the head's permits are there, the bucket has room for so much more.
        let room = |bucket: &Arc<Bucket>| bucket.whole.saturating_sub(bucket.interval.saturating_mul(cost));
        let room = self.buckets.iter().map(room).min().unwrap_or(0);
        let patience = (room.saturating_sub(LATE) / 2).min(until.saturating_sub(due));
        // Nothing is gained by a moment between two permits.
        let gathered = patience.checked_div(next.saturating_sub(due)).unwrap_or(0);
        due.saturating_add(gathered.saturating_mul(next.saturating_sub(due)))
    }
}

/// The same number of permits, or part of one, at another interval.
fn scaled(time: u64, interval: u64, before: u64, divide: fn(u128, u128) -> u128) -> u64 {
    let scaled = divide(u128::from(time) * u128::from(interval), u128::from(before.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
