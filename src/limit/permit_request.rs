use std::{num::NonZeroU32, time::Duration};

use crate::{
    clock::Instant,
    policy::{Amounts, Priority},
};

/// The permits that one request needs, and how long it may wait for them.
///
/// A limiter refuses a request immediately, without spending anything, if it cannot grant the permits within the bounds
/// of the `PermitRequest`.
///
/// # Default
///
/// One permit, no amounts, [`Priority::Normal`], no deadline, no limit on the wait, and at most
/// [`DEFAULT_MAX_QUEUE`](Self::DEFAULT_MAX_QUEUE) other waiters of the same or a higher priority.
#[derive(Debug, Clone, Copy)]
pub struct PermitRequest {
    cost: NonZeroU32,
    priority: Priority,
    deadline: Option<Instant>,
    max_wait: Option<Duration>,
    max_queue: usize,
    is_in_flight: bool,
    is_renewed: bool,
    amounts: Amounts,
}

impl PermitRequest {
    /// The default maximum number of other queued requests of the same or a higher priority: 10,000. A waiter takes
    /// about 400 bytes in a task that only waits for the limiter, and about 1.5 KB in the complete stack of a preset. A
    /// full queue takes 4 to 15 MB (`benches/memory.rs`).
    pub const DEFAULT_MAX_QUEUE: usize = 10_000;

    /// Creates a request for one permit with the default bounds.
    pub const fn new() -> Self {
        Self {
            cost: NonZeroU32::MIN,
            priority: Priority::Normal,
            deadline: None,
            max_wait: None,
            max_queue: Self::DEFAULT_MAX_QUEUE,
            is_in_flight: false,
            is_renewed: false,
            amounts: Amounts::NONE,
        }
    }

    /// Sets the number of permits. They are granted together.
    pub const fn with_cost(mut self, cost: NonZeroU32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the estimated amounts, such as tokens. They are granted together with the permits, and
    /// [settled](super::Settlement) when the actual amounts are known. Call
    /// [`Permit::mark_sent`](super::Permit::mark_sent), because a permit that is dropped without it returns them.
    /// Default: none.
    pub const fn with_amounts(mut self, amounts: Amounts) -> Self {
        self.amounts = amounts;
        self
    }

    /// Sets the priority. The limiter queues the request behind all waiters of the same or a higher priority.
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Makes the limiter refuse the request if its permits are not available by `deadline`.
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Makes the limiter refuse the request if it would wait longer than `max_wait`.
    ///
    /// The limiter forecasts the wait at these times:
    ///
    /// - The request arrives.
    /// - A server limit, the quotas or the learned rate change.
    /// - A request turns out to take more than its estimated amounts, up to 10 ms later.
    /// - Requests of a higher priority overtake the request, up to 10 ms later.
    /// - A waiter returns to its position ahead of the request, up to 10 ms later.
    /// - The request becomes the head of the queue.
    ///
    /// The forecast of a sliding or paced window may be too short if requests that cost several permits, or take
    /// amounts, leave gaps.
    pub const fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Makes the limiter refuse the request if `max_queue` other requests of the same or a higher priority are queued.
    pub const fn with_max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// Returns the number of permits.
    pub const fn cost(&self) -> NonZeroU32 {
        self.cost
    }

    /// Returns the estimated amounts.
    pub const fn amounts(&self) -> &Amounts {
        &self.amounts
    }

    /// Returns the priority.
    pub const fn priority(&self) -> Priority {
        self.priority
    }

    /// Returns the time by which the permits must be available.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the longest acceptable wait.
    pub const fn max_wait(&self) -> Option<Duration> {
        self.max_wait
    }

    /// Returns the largest acceptable number of other waiters.
    pub const fn max_queue(&self) -> usize {
        self.max_queue
    }

    /// Returns whether the request already counts as [in flight](super::LocalLimiter::with_max_in_flight), because an
    /// earlier permit of it has expired before it was sent. Its new permit takes over that place.
    pub const fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }

    /// Returns whether an earlier permit of the request has expired before it was sent.
    pub(crate) const fn is_renewed(&self) -> bool {
        self.is_renewed
    }

    /// Returns this request as it is after a part of its wait.
    pub(crate) fn after(self, waited: Duration) -> Self {
        Self { max_wait: self.max_wait.map(|wait| wait.saturating_sub(waited)), ..self }
    }

    /// Returns this request with its deadline, but without a limit on the wait or the queue. Used after the limiter has
    /// admitted the request.
    pub(crate) const fn admitted(self) -> Self {
        Self { max_wait: None, max_queue: usize::MAX, ..self }
    }

    /// Returns the admitted request after its permit has expired. It may still be in flight.
    ///
    /// The request was granted a permit before the waiters, so its priority is raised. At the end of the queue, it
    /// would keep its connection or its ready service idle, and the waiters before it would lack them, too.
    pub(crate) fn renewed(self, is_in_flight: bool) -> Self {
        let priority = if self.priority == Priority::Low { Priority::Normal } else { Priority::High };
        Self { priority, is_in_flight, is_renewed: true, ..self.admitted() }
    }
}

impl Default for PermitRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of permits that a request takes. Insert this value into the request's extensions. Default: 1.
///
/// ```
/// use std::num::NonZeroU32;
/// use tower_outbound::limit::PermitCost;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PermitCost(NonZeroU32::new(5).ok_or("not zero")?));
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitCost(pub NonZeroU32);
