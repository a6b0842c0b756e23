use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use super::{
    algorithm::{Algorithm, sliding_window::Logs, token_bucket::Buckets},
    limiter::Limiter,
    permit::{Issuer, Permit},
    permit_request::PermitRequest,
    queue::{Queue, acquire::Acquire, clock::Clock},
    snapshot::Snapshot,
};
use crate::{clock::Instant, error::Refusal, policy::Quota};

/// An in-process limiter: a FIFO queue in front of an algorithm, adjusted by the server's rate-limit headers.
/// [`TokenBucket`] and [`SlidingWindow`] are its two kinds.
///
/// # Clone
///
/// Clones share the quota and the queue.
pub struct LocalLimiter<A: Algorithm> {
    queue: Arc<Queue<A>>,
}

/// Spreads requests over the window: grants the burst at once, then one permit every [`Quota::refill_interval`].
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let bucket = TokenBucket::new(Quota::per_minute(100)?);
/// let start = tokio::time::Instant::now();
/// for _ in 0..100 {
///     bucket.acquire().await?;
/// }
/// // 10 at once, and 90 in a minute and the margin of 1 s.
/// assert!(start.elapsed() >= Duration::from_secs(61));
/// # Ok(())
/// # }
/// ```
///
/// The burst counts in the window, so the refill is slower than the quota: 100 per minute with a burst of 10 means 10
/// permits at once, then 90 per 61 s, which is a minute and the default margin. [`Quota::sustained`] returns this rate.
/// A [`SlidingWindow`] grants the whole quota.
///
/// A grant takes one compare-and-swap and uses governor's arithmetic.
///
/// # Notes
///
/// A small burst can lower the rate if the rate is high. tokio's timers have a resolution of milliseconds, and a bucket
/// that fills up before the timer fires loses permits. To keep the rate, use a burst of one request's cost plus the
/// refill of 2 ms: 21 at 10,000 per second, 2 at 300 per second. The quota is kept in every window with any burst.
pub type TokenBucket = LocalLimiter<Buckets>;

/// Grants the whole quota in any pattern. A permit becomes available again when its grant leaves the window.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::SlidingWindow};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let window = SlidingWindow::new(Quota::per_minute(100)?);
/// let start = tokio::time::Instant::now();
/// for _ in 0..100 {
///     window.acquire().await?;
/// }
/// assert!(start.elapsed().is_zero());
/// window.acquire().await?;
/// assert!(start.elapsed() >= Duration::from_secs(61));
/// # Ok(())
/// # }
/// ```
///
/// Use it for a server that is known to count a sliding window. The quota's burst has no effect. The sustained rate is
/// `limit / (window + margin)`.
///
/// # Memory
///
/// The log takes 16 bytes for each moment at which permits were granted, regardless of their number. It has at most as
/// many entries as the limit has permits. Above 4,096 entries it keeps only the grants of the last window.
pub type SlidingWindow = LocalLimiter<Logs>;

impl<A: Algorithm> LocalLimiter<A> {
    /// Creates a limiter of one quota, which is fully available.
    pub fn new(quota: Quota) -> Self {
        Self::build(&[quota], Clock::tokio())
    }

    /// Creates a limiter of several quotas, such as 10 per second and 100 per minute. A request takes permits of all
    /// quotas at once. While it waits, it takes none.
    ///
    /// An empty list gives [`unlimited`](Self::unlimited).
    pub fn all_of(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Clock::tokio())
    }

    /// Creates a limiter without a quota, for a service whose limit is unknown. Only server limits apply.
    pub fn unlimited() -> Self {
        Self::build(&[], Clock::tokio())
    }

    /// Like [`all_of`](Self::all_of), with the clock of the crate `quanta`. Reading that clock takes a third of the
    /// time that the operating system's clock takes. It ignores tokio's paused time.
    #[cfg(feature = "quanta")]
    pub fn with_quanta_clock(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Clock::quanta())
    }

    /// Starts with at most `permits` available permits. With 0, a restarted process does not send another burst right
    /// after that of the previous process.
    ///
    /// Default: the quota's burst, or the whole limit of a [`SlidingWindow`].
    pub fn with_initial_burst(self, permits: u32) -> Self {
        self.queue.leave_available(permits);
        self
    }

    /// Waits for one permit.
    ///
    /// # Errors
    ///
    /// Returns a refusal if 10,000 requests are queued.
    pub fn acquire(&self) -> Acquire {
        self.acquire_with(&PermitRequest::new())
    }

    /// Waits for `permits` permits together.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the quota can never grant this many permits at once, or if 10,000 requests are queued.
    pub fn acquire_many(&self, permits: NonZeroU32) -> Acquire {
        self.acquire_with(&PermitRequest::new().with_cost(permits))
    }

    /// Takes one permit immediately, without overtaking waiters.
    ///
    /// # Errors
    ///
    /// Returns a refusal with the wait that would have been needed.
    pub fn try_acquire(&self) -> Result<Permit<'_>, Refusal> {
        self.try_acquire_many(NonZeroU32::MIN)
    }

    /// Takes `permits` permits together immediately, without overtaking waiters.
    ///
    /// # Errors
    ///
    /// Returns a refusal with the wait that would have been needed.
    pub fn try_acquire_many(&self, permits: NonZeroU32) -> Result<Permit<'_>, Refusal> {
        let granted_at = self.queue.try_take(permits)?;
        Ok(Permit::issued(Issuer::Borrowed(&*self.queue), permits, granted_at))
    }

    /// Like [`try_acquire`](Self::try_acquire), but the permit is `'static`.
    ///
    /// # Errors
    ///
    /// Returns a refusal with the wait that would have been needed.
    pub fn try_acquire_owned(&self) -> Result<Permit<'static>, Refusal> {
        let granted_at = self.queue.try_take(NonZeroU32::MIN)?;
        Ok(Permit::issued(Issuer::Shared(self.queue.clone()), NonZeroU32::MIN, granted_at))
    }

    /// Replaces the quotas. Permits already spent still count, so a larger burst becomes available gradually.
    ///
    /// - A longer window counts the grants of the old one.
    /// - A waiter whose cost exceeds the new quotas is refused.
    /// - Every grant after this call takes a lock.
    pub fn set_quotas(&self, quotas: impl IntoIterator<Item = Quota>) {
        self.queue.change(&quotas.into_iter().collect::<Vec<_>>());
    }

    /// Grants nothing before `until`. Extends a pause and never shortens it.
    pub fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
    }

    /// Lifts a pause and discards the remaining permits that the server reported.
    pub fn resume(&self) {
        self.queue.resume();
    }

    /// Returns the current state, for diagnostics and metrics.
    pub fn snapshot(&self) -> Snapshot {
        self.queue.snapshot()
    }

    /// Returns whether the limiter is equivalent to a new one: nothing is spent, awaited or in use.
    pub(super) fn is_idle(&self) -> bool {
        // The holder of another clone or of a permit may be about to use the limiter.
        if Arc::strong_count(&self.queue) > 1 {
            return false;
        }
        // Makes the permits visible that the holder of the last clone took before it dropped that clone.
        fence(Ordering::Acquire);
        self.queue.is_idle()
    }

    fn build(quotas: &[Quota], clock: Clock) -> Self {
        Self { queue: Arc::new(Queue::new(quotas, clock)) }
    }
}

impl<A: Algorithm> Limiter for LocalLimiter<A> {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        Acquire::queued(self.queue.clone(), *request)
    }

    fn try_acquire_with(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        let granted_at = self.queue.take_without_lock(request)?;
        Some(Ok(Permit::issued(Issuer::Shared(self.queue.clone()), request.cost(), granted_at)))
    }
}

impl<A: Algorithm> Clone for LocalLimiter<A> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue) }
    }
}

impl<A: Algorithm> fmt::Debug for LocalLimiter<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLimiter").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}
