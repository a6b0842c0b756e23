//! The port for permits from a store outside the limiter.

use std::num::NonZeroU32;

use crate::{error::Refusal, policy::Amounts};

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
/// #[derive(Clone)]
/// struct Store(Arc<Mutex<Instant>>);
///
/// impl PermitSource for Store {
///     fn take(&mut self, cost: NonZeroU32, _amounts: &Amounts, _now: u64) -> bool {
///         let Ok(mut next) = self.0.lock() else { return false };
///         let is_free = *next <= Instant::now();
///         if is_free {
///             *next = Instant::now() + Duration::from_millis(100) * cost.get();
///         }
///         is_free
///     }
///
///     fn forecast(&self, start: u64, total: u64, _costliest: u32) -> u64 {
///         let Ok(next) = self.0.lock() else { return start };
///         let wait = next.saturating_duration_since(Instant::now()).as_nanos() as u64;
///         start + wait + 100_000_000 * (total - 1)
///     }
///
///     fn available(&self, _now: u64) -> u32 {
///         self.0.lock().map_or(0, |next| u32::from(*next <= Instant::now()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let (quota, start) = (Quota::per_second(10)?, Instant::now());
/// let store = Store(Arc::new(Mutex::new(start)));
/// let one = LocalLimiter::from_source(store.clone(), quota);
/// let other = LocalLimiter::from_source(store, quota);
/// for _ in 0..5 {
///     tokio::try_join!(one.acquire(), other.acquire())?;
/// }
/// // The two limiters share ten permits per second.
/// assert!(start.elapsed() >= Duration::from_millis(900));
/// # Ok(())
/// # }
/// ```
///
/// All times are nanoseconds since the limiter was created, by the limiter's clock. The limiter calls the source under
/// its lock, so no method may block or call the limiter.
///
/// A source whose permits arrive later, such as from a server, returns the present from [`forecast`](Self::forecast)
/// while it has no forecast. It reads the need of the waiters from
/// [`LocalLimiter::demand`](crate::limit::LocalLimiter::demand), and calls
/// [`LocalLimiter::source_changed`](crate::limit::LocalLimiter::source_changed) after permits have arrived. If there is
/// no forecast when a limit of the server ends, the limiter wakes the first waiter, whose future can then fetch
/// permits. In a [`Joint`](crate::limit::Joint#stores), a request first checks [`available`](Self::available).
pub trait PermitSource: Send {
    /// Takes `cost` permits and the amounts that may be used at `now`, or takes nothing. Returns whether it took them.
    /// The amounts are those of the units for which the limiter has a quota. An amount above the capacity of a
    /// [bucket](crate::Quota::bucket) is the capacity.
    fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, now: u64) -> bool;

    /// Replaces the amounts `charged` of a request by `actual`. The request took them at `taken_at` or later. If
    /// the request was not sent, `actual` is zero. Does nothing by default.
    fn settle(&mut self, _taken_at: u64, _charged: &Amounts, _actual: &Amounts, _now: u64) {}

    /// Returns when the last of `total` permits becomes available, if none is taken before `start`. No request costs
    /// more than `costliest`. Returns `start` if it is unknown.
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
