//! Permits from a store outside the limiter.

use std::{fmt, num::NonZeroU32};

use super::{Core, CoreSettings, rules::Rule, supply::Supply, units::Units};
use crate::{
    error::Refusal,
    policy::{Amounts, Quota, Taken},
};

/// The source of a limiter's permits, such as a store that several processes share.
/// [`LocalLimiter::from_source`](crate::limit::LocalLimiter::from_source) creates a limiter whose permits come from a
/// source. The limiter keeps the queue, the priorities, the deadlines and the server limits. The source only determines
/// when permits are available. `RedisLimiter` of the feature `redis` is built on this port.
///
/// ```
/// use std::{num::NonZeroU32, sync::{Arc, Mutex}, time::Duration};
/// use tokio::time::Instant;
/// use tower_outbound::{Quota, limit::{Amounts, LocalLimiter, PermitSource}};
///
/// /// A store in memory: grants one permit every 100 ms, to all limiters that share it.
/// struct Store {
///     next: Arc<Mutex<Instant>>,
///     /// The limiter's times count from here.
///     created: Instant,
/// }
///
/// impl PermitSource for Store {
///     fn take(&mut self, cost: NonZeroU32, _amounts: &Amounts, _now: u64) -> bool {
///         let Ok(mut next) = self.next.lock() else { return false };
///         let is_free = *next <= Instant::now();
///         if is_free {
///             *next = Instant::now() + Duration::from_millis(100) * cost.get();
///         }
///         is_free
///     }
///
///     fn forecast(&self, start: u64, total: u64, _costliest: u32) -> u64 {
///         let Ok(next) = self.next.lock() else { return start };
///         let next = next.saturating_duration_since(self.created).as_nanos() as u64;
///         // `start` may be the end of a pause, during which the permit becomes available.
///         start.max(next) + 100_000_000 * (total - 1)
///     }
///
///     fn available(&self, _now: u64) -> u32 {
///         self.next.lock().map_or(0, |next| u32::from(*next <= Instant::now()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let (quota, start) = (Quota::per_second(10)?, Instant::now());
/// let next = Arc::new(Mutex::new(start));
/// let limiter = || LocalLimiter::from_source(Store { next: next.clone(), created: Instant::now() }, quota);
/// let (one, other) = (limiter(), limiter());
/// let mut granted = Vec::new();
/// for _ in 0..5 {
///     let (first, second) = tokio::try_join!(one.acquire(), other.acquire())?;
///     granted.extend([first.granted_at(), second.granted_at()]);
/// }
/// // The two limiters share ten permits per second, and use all of them.
/// granted.sort();
/// assert!(granted.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(100)));
/// assert!(start.elapsed() < Duration::from_secs(1));
/// # let pause = Instant::now() + Duration::from_secs(1);
/// # one.pause_until(pause);
/// # one.acquire().await?;
/// # assert_eq!(Instant::now(), pause, "the wait for the permit passes during the pause");
/// # Ok(())
/// # }
/// ```
///
/// The limiters share only the permits. Each has its own queue, pauses, rate-limit headers and limit of requests in
/// flight. `RedisLimiter` also shares the pauses and the remaining amounts that the server reports, and counts the
/// requests in flight of all processes. It uses parts of the crate that are not public. A program with a custom source can
/// share a pause: it calls [`pause_until`](crate::limit::LocalLimiter::pause_until) of each limiter.
///
/// All times are nanoseconds since the limiter was created, by the limiter's clock. The limiter calls the source under
/// its lock, so no method may block or call the limiter.
///
/// A source whose permits arrive later, such as from a server, returns the present from [`forecast`](Self::forecast)
/// while it has no forecast. It reads the need of the waiters from
/// [`LocalLimiter::demand`](crate::limit::LocalLimiter::demand), and calls
/// [`LocalLimiter::source_changed`](crate::limit::LocalLimiter::source_changed) after permits have arrived. While there
/// is no forecast, the limiter wakes the first waiter every second, and when a limit of the server ends. The waiter's
/// future can then fetch permits. In a [`Joint`](crate::limit::Joint#stores), a request first checks
/// [`available`](Self::available).
pub trait PermitSource: Send {
    /// Takes `cost` permits and the amounts that may be used at `now`, or takes nothing. Returns whether it took them.
    /// The amounts are those of the units for which the limiter has a quota. An amount above the capacity of a
    /// [bucket](crate::Quota::bucket) is the capacity.
    fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool;

    /// Replaces the amounts `charged` of a request by `actual`. The request took them at `taken_at` or later. If
    /// the request was not sent, `actual` is zero. Does nothing by default.
    fn settle(&mut self, _taken_at: u64, _charged: &Amounts, _actual: &Amounts, _now: u64) {}

    /// Returns when the last of `total` permits becomes available, if none is taken before `start`. `start` is the
    /// present, or the end of a pause. No request costs more than `costliest`. Returns `start` if the time is
    /// unknown.
    fn forecast(&self, start: u64, total: u64, costliest: u32) -> u64;

    /// Returns the number of permits that are available at `now`.
    fn available(&self, now: u64) -> u32;

    /// Returns the largest number of permits that one request can ever take. Default: `u32::MAX`.
    fn largest(&self) -> u32 {
        u32::MAX
    }

    /// Returns how long the source may take until it can make a forecast, in nanoseconds. A request without a forecast
    /// may exceed its longest wait by this time. Default: 0.
    fn grace(&self) -> u64 {
        0
    }

    /// Returns why the source currently grants no request of this cost, or `None` if it may grant one. Default: `None`.
    fn unavailable(&self, _cost: NonZeroU32, _now: u64) -> Option<Refusal> {
        None
    }
}

/// The permits that the waiters of a limiter need. Times are nanoseconds since the limiter was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// The permits that all waiters need together.
    pub permits: u64,
    /// The permits that the first waiter needs. `None` if no request waits.
    pub head: Option<NonZeroU32>,
    /// The amounts that the first waiter needs, of the units for which the limiter has a quota.
    pub amounts: Amounts,
    /// The time after which a grant is too late for at least one waiter. `None` if no request waits.
    pub last: Option<u64>,
    /// The permits whose requests the server may not have subtracted yet from the remaining permits that it reports.
    pub uncounted: u64,
}

/// A store outside the limiter, which replaces the quotas.
pub(super) struct Source {
    pub(super) store: Box<dyn PermitSource>,
    /// The time before which the store counts as empty for waiters that take their permits when they are polled. Zero
    /// unless it has refused such a waiter although it had the permits, because it lacked the amounts.
    retry_at: u64,
}

/// How long the store counts as empty after it has refused a waiter, unless it reports a change: 100 ms in nanoseconds.
const RETRY: u64 = 100_000_000;

/// How often the first waiter is polled while the store has no forecast, because a report may be lost: 1 s in
/// nanoseconds. The runtime of the task that queries the store may have ended, for example.
const POLL: u64 = 1_000_000_000;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Supply {
    fn source_mut(&mut self) -> Option<&mut dyn PermitSource> {
        self.source.as_mut().map(|source| &mut *source.store as &mut dyn PermitSource)
    }

    /// Returns whether the store has these permits, and has not just refused them. `true` without a store.
    pub(super) fn has_stored(&self, cost: NonZeroU32, now: u64) -> bool {
        let has = |source: &Source| source.retry_at <= now && source.store.available(now) >= cost.get();
        self.source.as_ref().is_none_or(has)
    }

    /// Returns when the limiter calls a store again that has refused permits, or that reports no change.
    pub(super) fn retry_at(&self, now: u64) -> u64 {
        let refused = self.source.as_ref().map(|source| source.retry_at).filter(|at| *at > now);
        refused.unwrap_or(now.saturating_add(POLL))
    }

    /// Records that the store has refused permits, or that it has changed since.
    pub(super) fn set_refused(&mut self, at: Option<u64>) {
        let retry_at = at.map_or(0, |at| at.saturating_add(RETRY));
        self.source.iter_mut().for_each(|source| source.retry_at = retry_at);
    }
}

impl Core {
    /// Creates a limiter that takes its permits from a store. The margins of `quotas` determine how long a permit stays
    /// valid.
    pub(crate) fn from_source(
        store: Box<dyn PermitSource>,
        quotas: &[Quota],
        settings: CoreSettings,
    ) -> Self {
        let mut supply = Supply::new(&[], Rule::TokenBucket);
        supply.source = Some(Source { store, retry_at: 0 });
        let mut core = Self::of(supply, quotas, true);
        core.units = Units::stored(quotas);
        core.queue.shares.save_none();
        core.configure(settings);
        // The store's permits expire, so a grant must not be backdated.
        core.lateness.never_catch_up();
        core
    }

    /// Takes the store, which leaves a limiter that must not be used.
    pub(crate) fn take_source(&mut self) -> Option<Box<dyn PermitSource>> {
        self.supply.source.take().map(|source| source.store)
    }

    /// Returns the permits that the waiters need.
    pub fn demand(&self, now: u64) -> Demand {
        let (grace, head) = (self.grace(), self.head());
        let amounts = head.map(|head| self.stored_amounts(&head.waiter.amounts, &head.waiter.amounts));
        Demand {
            permits: self.queue.total(),
            head: head.map(|head| head.waiter.cost),
            amounts: amounts.unwrap_or_default(),
            last: self.queue.iter().map(|waiter| waiter.latest.last(grace)).min(),
            uncounted: self.uncounted(now),
        }
    }

    /// Grants the new permits of the store, after it has refused the waiters that are too late and take none.
    pub fn source_changed(&mut self, now: u64) {
        self.supply.set_refused(None);
        let demand = self.demand(now);
        let is_late = |last| self.forecast(now, demand.permits) > last || last <= now;
        let may_refuse = self.unavailable(NonZeroU32::MAX, now).is_some();
        if may_refuse || demand.last.is_some_and(is_late) {
            self.refuse_late(now);
        }
        self.advance(now);
    }

    /// Returns the amounts of a request as a store counts them.
    fn stored_amounts(&self, amounts: &Amounts, granted: &Amounts) -> Amounts {
        self.units.as_ref().map_or(Amounts::NONE, |units| units.stored_amounts(amounts, granted))
    }

    /// Takes the permits and the limited amounts of a request from the store. Returns when it took them.
    #[inline(never)]
    pub(super) fn take_from_source(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> Option<u64> {
        let amounts = self.stored_amounts(amounts, amounts);
        self.supply.source_mut()?.take(cost, &amounts, now).then_some(now)
    }

    /// Reports the amounts of a request to the store, if there is one.
    pub(super) fn settle_in_source(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) {
        if !self.is_stored() {
            return;
        }
        let [charged, actual] =
            [&taken.charged, actual].map(|amounts| self.stored_amounts(amounts, &taken.granted));
        let source = self.supply.source_mut();
        source.into_iter().for_each(|source| source.settle(taken_at, &charged, &actual, now));
    }
}

impl Units {
    /// Returns the amounts of a request, which was granted an estimate, as a store counts them: only those of the units
    /// with a quota. The smallest bucket of a unit limits them, because the store has one amount for all quotas.
    fn stored_amounts(&self, amounts: &Amounts, granted: &Amounts) -> Amounts {
        let buckets = self.quotas.states.iter().filter(|it| it.quota.is_bucket());
        buckets.fold(amounts.limited_by(&self.limits()), |stored, it| {
            let most = u32::try_from(it.charge(amounts, granted)).unwrap_or(u32::MAX);
            stored.with(it.quota.unit(), most.min(stored.get(it.quota.unit())))
        })
    }
}
