use std::{
    fmt,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use governor::{
    clock::Clock,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use pin_project_lite::pin_project;

use super::{
    Ask, Limiter, Refusal,
    queue::{Meter, Queue, Ticket, nanos},
};
use crate::{
    clock::{self, Instant},
    policy::Quota,
};

/// A token bucket that never admits more than the quota in any window, with a fair queue before it.
///
/// Governor's arithmetic, one compare-and-swap a grant, on tokio's clock. The burst is there at once; after it
/// a permit comes free every [`Quota::refill_interval`], which is as slow as the window asks for: "100 per
/// minute, burst 10" lets 10 go at once and then 90 a minute.
///
/// Timers tick in milliseconds: a quota that refills faster than its burst per millisecond is kept, but not
/// used to the full. Give it a burst of at least what refills in 2 ms.
///
/// # Clone
///
/// Clones share the bucket and the queue.
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
#[derive(Clone)]
pub struct TokenBucket {
    queue: Arc<Queue<Gcra>>,
    quota: Option<Quota>,
}

impl TokenBucket {
    /// A full bucket of this quota.
    pub fn new(quota: Quota) -> Self {
        Self::build(Some(quota))
    }

    /// No quota: every request goes at once, but for the pauses that the server asks for. For a service whose
    /// limit is not known.
    pub fn unmetered() -> Self {
        Self::build(None)
    }

    /// The quota; none when unmetered.
    pub fn quota(&self) -> Option<Quota> {
        self.quota
    }

    fn build(quota: Option<Quota>) -> Self {
        let clock = SinceStart(clock::now());
        Self { queue: Arc::new(Queue::new(clock.0, Gcra::new(quota, clock))), quota }
    }
}

impl Limiter for TokenBucket {
    type Acquire = Acquire;

    fn acquire(&self, ask: Ask) -> Acquire {
        Acquire { ticket: Ticket::new(Arc::clone(&self.queue), ask) }
    }

    fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
    }
}

impl fmt::Debug for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBucket")
            .field("quota", &self.quota)
            .field("waiting", &self.queue.waiting())
            .finish()
    }
}

pin_project! {
    /// The wait for a permit of a [`TokenBucket`].
    ///
    /// Dropping it before it resolves spends nothing and lets the next in line go.
    #[derive(Debug)]
    pub struct Acquire {
        #[pin]
        ticket: Ticket<Gcra>,
    }
}

impl Future for Acquire {
    type Output = Result<(), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().ticket.poll(cx)
    }
}

/// Governor's bucket, spoken to in nanoseconds since the limiter was made.
pub(super) struct Gcra {
    bucket: Option<Bucket>,
}

struct Bucket {
    governor: governor::RateLimiter<NotKeyed, InMemoryState, SinceStart, NoOpMiddleware<Nanos>>,
    interval: u64,
    /// How far the theoretical arrival time may lie ahead of a grant: what the burst is worth.
    tolerance: u64,
}

impl Gcra {
    fn new(quota: Option<Quota>, clock: SinceStart) -> Self {
        Self { bucket: quota.and_then(|quota| Bucket::new(quota, clock)) }
    }
}

impl Bucket {
    /// None only for an interval of zero or a burst of zero, neither of which a `Quota` can have.
    fn new(quota: Quota, clock: SinceStart) -> Option<Self> {
        let interval = quota.refill_interval();
        let burst = NonZeroU32::new(quota.burst())?;
        let limits = governor::Quota::with_period(interval)?.allow_burst(burst);
        let interval = nanos(interval);
        Some(Self {
            governor: governor::RateLimiter::direct_with_clock(limits, clock),
            interval,
            tolerance: interval.saturating_mul(u64::from(quota.burst() - 1)),
        })
    }
}

impl Meter for Gcra {
    fn take(&self) -> Result<(), u64> {
        let Some(bucket) = &self.bucket else { return Ok(()) };
        bucket.governor.check().map_err(|not_until| not_until.earliest_possible().as_u64())
    }

    fn forecast(&self, start: u64, due: Option<u64>, ahead: u64) -> u64 {
        let Some(bucket) = &self.bucket else { return start };
        // The theoretical arrival time of the next permit: known when the bucket last said no, and otherwise
        // taken as not ahead of `start`, so that nobody is refused who could have gone.
        let arrival = due.map_or(start, |due| due.saturating_add(bucket.tolerance)).max(start);
        arrival
            .saturating_add(bucket.interval.saturating_mul(ahead))
            .saturating_sub(bucket.tolerance)
            .max(start)
    }
}

/// Tokio's clock, as nanoseconds since the limiter was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct SinceStart(Instant);

impl Clock for SinceStart {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(nanos(clock::now().saturating_duration_since(self.0)))
    }
}
