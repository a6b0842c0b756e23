use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use super::{
    algorithm::Algorithm,
    limiter::Limiter,
    permit::Permit,
    permit_request::PermitRequest,
    queue::{Queue, acquire::Acquire, clock::Clock, fast_path::Setup},
    snapshot::Snapshot,
};
use crate::{
    clock::Instant,
    config::InvalidConfig,
    error::Refusal,
    policy::{Quota, priority::Shares},
};

/// An in-process limiter: a queue with priorities in front of an algorithm, adjusted by the server's rate-limit headers.
/// [`PacedWindow`](super::PacedWindow), [`TokenBucket`](super::TokenBucket), [`SlidingWindow`](super::SlidingWindow)
/// and [`Adaptive`](super::Adaptive) are its four kinds.
///
/// ```
/// use tower_outbound::{Quota, limit::PacedWindow};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = PacedWindow::new(Quota::per_minute(100)?);
/// let permit = limiter.acquire().await?;
/// limiter.set_quotas([Quota::per_minute(300)?]);
/// assert_eq!(limiter.snapshot().granted, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Clone
///
/// All clones share the quota and the queue.
pub struct LocalLimiter<A: Algorithm> {
    queue: Arc<Queue<A>>,
}

impl<A: Algorithm> LocalLimiter<A> {
    /// Creates a limiter of one quota, which is fully available.
    pub fn new(quota: Quota) -> Self {
        Self::build(&[quota], Clock::tokio())
    }

    /// Creates a limiter of several quotas, such as 10 per second and 100 per minute. A request takes permits of all
    /// quotas at once. While it waits, it takes none.
    ///
    /// An empty list creates an [`unlimited`](Self::unlimited) limiter.
    pub fn all_of(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Clock::tokio())
    }

    /// Creates a limiter without a quota. Only the limits that the server reports apply. An
    /// [`Adaptive`](super::Adaptive) limiter learns a rate from the server's responses instead.
    pub fn unlimited() -> Self {
        Self::build(&[], Clock::tokio())
    }

    /// Like [`all_of`](Self::all_of), with the clock of the crate `quanta`. Reading quanta's clock takes a third of the
    /// time of reading the operating system's clock. Quanta's clock ignores tokio's paused time.
    #[cfg(feature = "quanta")]
    pub fn with_quanta_clock(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Clock::quanta())
    }

    /// Starts with at most `permits` available permits. With 0, a restarted process adds no burst to one that the
    /// previous process may have just sent.
    ///
    /// Default: the quota's burst, or the whole limit of a [`SlidingWindow`](super::SlidingWindow).
    pub fn with_initial_burst(self, permits: u32) -> Self {
        self.queue.leave_available(permits);
        self
    }

    /// Also limits the requests to the remaining permits that the server's rate-limit headers report. Without this
    /// setting, a limiter with a quota applies them only from a response that rejects requests, such as a 429.
    ///
    /// Use this setting if several processes share a key but no limiter. It lowers the throughput by up to 12 %,
    /// because servers round resets up to a second. In addition, a server that counts a sliding window frees permits
    /// before the reset that it reports.
    pub fn with_server_remaining(self) -> Self {
        self.queue.obey_remaining();
        self
    }

    /// Sets the percentage of permits that each lower priority with queued requests gets. Default: 10. With 0, it gets
    /// permits only if no request of a higher priority is queued.
    ///
    /// A builder's own limiter keeps the default. Pass a limiter with another share to
    /// [`StackBuilder::with_limiter`](crate::stack::StackBuilder::with_limiter).
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::{PacedWindow, PermitRequest, Priority}};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let limiter = PacedWindow::new(Quota::per_minute(100)?).with_lower_priority_share(5)?;
    /// # use tower_outbound::limit::Limiter;
    /// limiter.acquire_with(&PermitRequest::new().with_priority(Priority::High)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is above 25. At 25, the two lower priorities together get half of the permits.
    pub fn with_lower_priority_share(self, percent: u32) -> Result<Self, InvalidConfig> {
        if percent > Shares::LARGEST {
            let expected = format!("at most {}", Shares::LARGEST);
            return Err(InvalidConfig::new("lower priority share", percent.to_string(), expected));
        }
        self.queue.share(percent);
        Ok(self)
    }

    pub(super) fn configured(quotas: &[Quota], initial_burst: Option<u32>) -> Self {
        let limiter = Self::all_of(quotas.iter().copied());
        match initial_burst {
            Some(permits) => limiter.with_initial_burst(permits),
            None => limiter,
        }
    }

    /// Waits for one permit.
    ///
    /// # Errors
    ///
    /// Returns a refusal if 10,000 requests of the same or a higher priority are queued.
    pub fn acquire(&self) -> Acquire {
        self.acquire_with(&PermitRequest::new())
    }

    /// Waits for a number of permits, which are granted together.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the quota can never grant this many permits at once, or if 10,000 requests of the same
    /// or a higher priority are queued.
    pub fn acquire_many(&self, permits: NonZeroU32) -> Acquire {
        self.acquire_with(&PermitRequest::new().with_cost(permits))
    }

    /// Takes one permit immediately, at [`Priority::Normal`](crate::limit::Priority). Overtakes only waiters of a lower
    /// priority.
    ///
    /// # Errors
    ///
    /// Returns a refusal if no permit is available immediately. The refusal contains the wait that would have been
    /// needed.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Refusal> {
        self.try_acquire_many(NonZeroU32::MIN)
    }

    /// Takes a number of permits together, immediately, at [`Priority::Normal`](crate::limit::Priority). Overtakes only
    /// waiters of a lower priority.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the permits are not available immediately. The refusal contains the wait that would have
    /// been needed.
    #[inline]
    pub fn try_acquire_many(&self, permits: NonZeroU32) -> Result<Permit<'_>, Refusal> {
        let granted_at = self.queue.try_take(permits)?;
        Ok(self.queue.permit(permits, granted_at))
    }

    /// Like [`try_acquire`](Self::try_acquire), but the permit is `'static`.
    ///
    /// # Errors
    ///
    /// Returns a refusal if no permit is available immediately. The refusal contains the wait that would have been
    /// needed.
    pub fn try_acquire_owned(&self) -> Result<Permit<'static>, Refusal> {
        let granted_at = self.queue.try_take(NonZeroU32::MIN)?;
        Ok(self.queue.clone().shared_permit(NonZeroU32::MIN, granted_at))
    }

    /// Replaces the quotas. Permits already spent still count, so a larger burst becomes available gradually.
    ///
    /// - If the new window is longer, it also counts the grants of the previous window.
    /// - A waiter whose cost exceeds the new quotas is refused.
    /// - Every grant after this call takes a lock.
    pub fn set_quotas(&self, quotas: impl IntoIterator<Item = Quota>) {
        self.queue.change(&quotas.into_iter().collect::<Vec<_>>());
    }

    /// Pauses the limiter until `until`. Extends a current pause, but never shortens it.
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

    /// Returns whether the limiter is equivalent to a new one: no permit is spent, no request is queued, no server
    /// limit applies, and no other clone and no permit of the limiter exist.
    pub(super) fn is_idle(&self) -> bool {
        // The holder of another clone or of a permit may be about to use the limiter.
        if Arc::strong_count(&self.queue) > 1 {
            return false;
        }
        // Makes the grants of dropped clones visible to this thread.
        fence(Ordering::Acquire);
        self.queue.is_idle()
    }

    /// Prepares the limiter for one key of many. Limiters with the same quota share one setup.
    pub(super) fn for_key(mut self, setups: &mut Vec<Arc<Setup>>) -> Self {
        // A limiter with other clones is in use, and keeps its own setup.
        if let Some(queue) = Arc::get_mut(&mut self.queue) {
            queue.share_setup(setups);
        }
        self
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
        Some(Ok(self.queue.clone().shared_permit(request.cost(), granted_at)))
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
