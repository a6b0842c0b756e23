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
    Acquire, Ask, Feedback, Limiter, Refusal, Snapshot, gcra::Gcra, meter::Meter, queue::Queue, ring::Rings,
    ticker::Ticker,
};
use crate::{clock::Instant, policy::Quota};

/// A limiter in this process: a strategy, with a fair line before it and an ear for the server's word.
/// [`TokenBucket`] and [`SlidingWindow`] are its two forms.
///
/// # Clone
///
/// Clones share the quota and the line.
pub struct LocalLimiter<M: Meter> {
    queue: Arc<Queue<M>>,
}

/// Spreads the requests over the window: the burst at once, then one every [`Quota::refill_interval`].
///
/// Governor's arithmetic, one compare-and-swap a grant. Its burst counts in the window like everything else, so
/// the refill is as slow as that asks for: "100 per minute, burst 10" lets 10 go at once and then 90 a minute.
/// For the whole quota, in bursts as they come, take a [`SlidingWindow`].
///
/// Timers tick in milliseconds, and a bucket that is full by the time that its timer fires loses what would have
/// come. So the window is always kept, but a rate only by a burst of what refills in 2 ms and one request's cost
/// beside it: 21 for 10,000 a second, 2 for 300.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::{Ask, Limiter, TokenBucket}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let bucket = TokenBucket::new(Quota::per_minute(100)?.with_burst(10)?);
/// let start = tokio::time::Instant::now();
/// for _ in 0..100 {
///     bucket.acquire(Ask::default()).await?;
/// }
/// assert!(start.elapsed() >= Duration::from_secs(60), "the hundredth belongs to the next minute");
/// # Ok(())
/// # }
/// ```
pub type TokenBucket = LocalLimiter<Gcra>;

/// Lets the whole quota go at once, and each further request when the one that many before it has left the
/// window: full burst and full throughput.
///
/// For servers that are known to count a window. It remembers the moments of the last requests, 8 bytes for each
/// that the quota allows in a window, taken as they are needed. The quota's burst does not count here.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Quota, limit::{Ask, Limiter, SlidingWindow}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let window = SlidingWindow::new(Quota::per_minute(100)?);
/// let start = tokio::time::Instant::now();
/// for _ in 0..100 {
///     window.acquire(Ask::default()).await?;
/// }
/// assert!(start.elapsed().is_zero(), "all hundred at once");
/// window.acquire(Ask::default()).await?;
/// assert!(start.elapsed() >= Duration::from_secs(60));
/// # Ok(())
/// # }
/// ```
pub type SlidingWindow = LocalLimiter<Rings>;

impl<M: Meter> LocalLimiter<M> {
    /// A limiter of this quota, with nothing spent.
    pub fn new(quota: Quota) -> Self {
        Self::build(&[quota], Ticker::tokio())
    }

    /// A limiter of several quotas at once, such as 10 a second and 100 a minute: a request takes its permits of
    /// all of them, or waits and has taken none of any.
    ///
    /// None at all is [`unmetered`](Self::unmetered).
    pub fn all_of(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Ticker::tokio())
    }

    /// No quota: every request goes at once, but for what the server asks for. For a service whose limit is not
    /// known.
    pub fn unmetered() -> Self {
        Self::build(&[], Ticker::tokio())
    }

    /// The same on `quanta`'s clock, which costs a third of the operating system's to read and knows nothing of
    /// tokio's paused time.
    #[cfg(feature = "quanta")]
    pub fn with_fast_clock(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(&quotas.into_iter().collect::<Vec<_>>(), Ticker::fast())
    }

    /// Spends all that is there now: a process that restarts must not burst on top of the one before it.
    pub fn starting_empty(self) -> Self {
        self.queue.empty();
        self
    }

    /// Takes the permits now or not at all, for those who would rather shed than wait. Overtakes nobody who
    /// waits. Call [`release`](Limiter::release) when the request is over: until then it counts as in flight, and
    /// is taken off whatever the server says is left.
    ///
    /// # Errors
    ///
    /// The wait that it would have been.
    pub fn try_acquire(&self, cost: NonZeroU32) -> Result<(), Refusal> {
        self.queue.try_take(&Ask { cost, ..Ask::default() })
    }

    /// Goes on under other quotas. What is spent stays spent, and no more can go at once than before: a larger burst
    /// comes by and by. Of a longer window only what the old one remembered is known. Whoever waits for more than
    /// the new quotas can ever give is refused. A permit costs a lock more from then on.
    pub fn set_quotas(&self, quotas: impl IntoIterator<Item = Quota>) {
        self.queue.change(&quotas.into_iter().collect::<Vec<_>>());
    }

    /// Grants nothing before `until`. A pause is only ever extended: an earlier moment changes nothing.
    pub fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
    }

    /// Lifts the server's pause and forgets what it said is left, for somebody who knows better.
    pub fn resume(&self) {
        self.queue.resume();
    }

    /// How it stands, for people and meters.
    pub fn snapshot(&self) -> Snapshot {
        self.queue.snapshot()
    }

    /// Nothing is owed, awaited or in use: a new limiter would be no different.
    pub(super) fn is_idle(&self) -> bool {
        // Whoever holds a clone may be about to use it.
        if Arc::strong_count(&self.queue) > 1 {
            return false;
        }
        // What the last one took before it let its clone go is seen from here on.
        fence(Ordering::Acquire);
        self.queue.is_idle()
    }

    fn build(quotas: &[Quota], ticker: Ticker) -> Self {
        Self { queue: Arc::new(Queue::new(quotas, ticker)) }
    }
}

impl<M: Meter> Limiter for LocalLimiter<M> {
    type Acquire = Acquire<M>;

    fn acquire(&self, ask: Ask) -> Acquire<M> {
        Acquire::new(Arc::clone(&self.queue), ask)
    }

    fn take_at_once(&self, ask: &Ask) -> Option<Result<(), Refusal>> {
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
