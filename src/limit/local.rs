use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

use super::{
    Acquire, Feedback, Limiter, PermitRequest, Refusal, Snapshot, gcra::Gcra, meter::Meter, queue::Queue,
    ring::Rings, ticker::Ticker,
};
use crate::{clock::Instant, policy::Quota};

/// An in-process limiter: a FIFO queue in front of an algorithm, adjusted by the server's rate-limit headers.
/// [`TokenBucket`] and [`SlidingWindow`] name its two algorithms.
///
/// # Clone
///
/// Clones share the quota and the queue.
pub struct LocalLimiter<M: Meter> {
    queue: Arc<Queue<M>>,
}

/// Spreads requests over the window: grants the burst at once, then one permit every [`Quota::refill_interval`].
///
/// The burst counts in the window, so the refill is slower than the quota. 100 per minute with a burst of 10 means 10
/// permits at once, then 90 per 61 s: a minute and the default margin. [`Quota::sustained`] returns this rate.
/// [`SlidingWindow`] grants the whole quota.
///
/// A grant takes one compare-and-swap, with governor's arithmetic.
///
/// # Notes
///
/// A small burst at a high rate lowers the rate. tokio's timers tick in milliseconds, and a bucket that fills up before
/// its timer fires loses permits. To keep the rate, choose a burst of one request's cost and 2 ms of refill: 21 at
/// 10,000 per second, 2 at 300 per second. The window holds for every burst.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::{PermitRequest, Limiter, TokenBucket}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let bucket = TokenBucket::new(Quota::per_minute(100)?);
/// let start = tokio::time::Instant::now();
/// for _ in 0..100 {
///     bucket.acquire(PermitRequest::default()).await?;
/// }
/// // 10 at once, and 90 in a minute and the margin of 1 s.
/// assert!(start.elapsed() >= Duration::from_secs(61));
/// # Ok(())
/// # }
/// ```
pub type TokenBucket = LocalLimiter<Gcra>;

/// Grants the whole quota in any pattern: a permit becomes available again once its grant leaves the window.
///
/// Use it for a server that is known to count a sliding window. The quota's burst has no effect. The sustained rate is
/// `limit / (window + margin)`.
///
/// # Memory
///
/// The log takes 16 bytes for each moment with a grant, however many permits it granted. It grows as needed, to at most
/// as many entries as the limit has permits. Beyond 4,096 entries it keeps only the grants of the last window.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::{PermitRequest, Limiter, SlidingWindow}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let window = SlidingWindow::new(Quota::per_minute(100)?);
/// let start = tokio::time::Instant::now();
/// for _ in 0..100 {
///     window.acquire(PermitRequest::default()).await?;
/// }
/// assert!(start.elapsed().is_zero());
/// window.acquire(PermitRequest::default()).await?;
/// assert!(start.elapsed() >= Duration::from_secs(61));
/// # Ok(())
/// # }
/// ```
pub type SlidingWindow = LocalLimiter<Rings>;

impl<M: Meter> LocalLimiter<M> {
    /// Creates a limiter of one quota, with nothing spent.
    pub fn new(quota: Quota) -> Self {
        Self::build(&[quota], Ticker::tokio())
    }

    /// Creates a limiter of several quotas, such as 10 per second and 100 per minute. A request takes permits from all
    /// of them at once, and from none while it waits.
    ///
    /// An empty list gives [`unlimited`](Self::unlimited).
    pub fn all_of(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Ticker::tokio())
    }

    /// Creates a limiter without a quota, for a service with an unknown limit. Only server limits apply.
    pub fn unlimited() -> Self {
        Self::build(&[], Ticker::tokio())
    }

    /// Like [`all_of`](Self::all_of), on `quanta`'s clock, which is read in a third of the time of the operating
    /// system's clock. It ignores tokio's paused time.
    #[cfg(feature = "quanta")]
    pub fn with_quanta_clock(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Ticker::fast())
    }

    /// Spends all available permits, so that a restarted process does not add a burst to the previous one's.
    pub fn starting_empty(self) -> Self {
        self.queue.empty();
        self
    }

    /// Starts with at most `permits` available, so that a restarted process does not add a burst to the previous one's.
    pub fn with_initial_burst(self, permits: u32) -> Self {
        if let Some(cost) = NonZeroU32::new(self.snapshot().available.saturating_sub(permits)) {
            let _ = self.try_acquire(cost);
            self.queue.release(cost);
        }
        self
    }

    /// Takes the permits immediately, or returns an error instead of waiting. Never overtakes waiters.
    ///
    /// Call [`release`](Limiter::release) when the request is over. Until then it counts as in flight: its permits are
    /// subtracted from the remaining permits that the server reports.
    ///
    /// # Errors
    ///
    /// Returns a refusal with the wait that would have been needed.
    pub fn try_acquire(&self, cost: NonZeroU32) -> Result<(), Refusal> {
        self.queue.try_take(&PermitRequest { cost, ..PermitRequest::default() })
    }

    /// Replaces the quotas. Permits already spent still count, so a larger burst becomes available gradually.
    ///
    /// - A longer window starts with the grants of the old one.
    /// - A waiter whose cost exceeds the new quotas is refused.
    /// - Every later grant takes a lock.
    pub fn set_quotas(&self, quotas: impl IntoIterator<Item = Quota>) {
        self.queue.change(&quotas.into_iter().collect::<Vec<_>>());
    }

    /// Grants nothing before `until`. Extends a pause and never shortens it.
    pub fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
    }

    /// Lifts the server's pause and discards the remaining permits that it reported.
    pub fn resume(&self) {
        self.queue.resume();
    }

    /// Returns the current state, for people and metrics.
    pub fn snapshot(&self) -> Snapshot {
        self.queue.snapshot()
    }

    /// Returns whether the limiter equals a new one: nothing is spent, awaited or in use.
    pub(super) fn is_idle(&self) -> bool {
        // The holder of a clone may be about to use it.
        if Arc::strong_count(&self.queue) > 1 {
            return false;
        }
        // Makes visible what the holder of the last clone took before it dropped the clone.
        fence(Ordering::Acquire);
        self.queue.is_idle()
    }

    fn build(quotas: &[Quota], ticker: Ticker) -> Self {
        Self { queue: Arc::new(Queue::new(quotas, ticker)) }
    }
}

impl<M: Meter> Limiter for LocalLimiter<M> {
    type Acquire = Acquire<M>;

    fn acquire(&self, ask: PermitRequest) -> Acquire<M> {
        Acquire::new(Arc::clone(&self.queue), ask)
    }

    fn take_at_once(&self, ask: &PermitRequest) -> Option<Result<(), Refusal>> {
        self.queue.take_at_once(ask).then_some(Ok(()))
    }

    fn observe(&self, feedback: &Feedback) {
        self.queue.observe(feedback);
    }

    fn release(&self, cost: NonZeroU32) {
        self.queue.release(cost);
    }

    fn abandon(&self, cost: NonZeroU32) {
        self.queue.abandon(cost);
    }

    fn is_stale(&self, held: Duration) -> bool {
        self.queue.is_stale(held)
    }
}

impl<M: Meter> Clone for LocalLimiter<M> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue) }
    }
}

impl<M: Meter> fmt::Debug for LocalLimiter<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLimiter").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}
