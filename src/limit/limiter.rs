use std::{future::Future, sync::Arc, time::Duration};

use super::Refusal;
use crate::clock::Instant;

/// Decides when a request may be sent. The port behind which every limiter stands, in this process or outside.
///
/// Clones of an implementation share one state, so that every layer made of them shares the quota.
///
/// ```
/// use std::future::{Ready, ready};
/// use tower_outbound::limit::{Ask, Limiter, Refusal, RateLimitLayer};
/// use tokio::time::Instant;
///
/// /// Lets all through.
/// #[derive(Clone)]
/// struct Open;
///
/// impl Limiter for Open {
///     type Acquire = Ready<Result<(), Refusal>>;
///
///     fn acquire(&self, _: Ask) -> Self::Acquire {
///         ready(Ok(()))
///     }
///
///     fn pause_until(&self, _: Instant) {}
/// }
///
/// let layer = RateLimitLayer::new(Open);
/// ```
pub trait Limiter: Clone {
    /// The wait for a permit. Named, so that the path on which a permit is there at once allocates nothing;
    /// an adapter that has no name for its future puts it in a `Pin<Box<dyn Future + Send>>`.
    ///
    /// Dropping it before it resolves spends nothing and lets the next in line go.
    type Acquire: Future<Output = Result<(), Refusal>>;

    /// Begins the wait for one permit. Nothing is spent and no place taken before the future is first polled.
    fn acquire(&self, ask: Ask) -> Self::Acquire;

    /// Grants nothing before `until`. A pause is only ever extended: an earlier moment changes nothing.
    fn pause_until(&self, until: Instant);
}

impl<L: Limiter> Limiter for Arc<L> {
    type Acquire = L::Acquire;

    fn acquire(&self, ask: Ask) -> Self::Acquire {
        L::acquire(self, ask)
    }

    fn pause_until(&self, until: Instant) {
        L::pause_until(self, until);
    }
}

/// What one request asks of the limiter: a permit, within these bounds.
///
/// A request that can't be served within its bounds is refused at once, without spending.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Ask {
    /// The permit is worth nothing after this moment.
    pub deadline: Option<Instant>,
    /// The longest wait; none lets it wait for as long as the deadline allows.
    pub max_wait: Option<Duration>,
    /// The most requests that may be waiting already when this one comes.
    pub max_queue: usize,
}

impl Ask {
    /// 10,000 waiting requests: each holds its future and some 100 bytes of the queue, so a megabyte or so.
    pub const DEFAULT_MAX_QUEUE: usize = 10_000;
}

impl Default for Ask {
    /// No deadline, any wait, at most [`DEFAULT_MAX_QUEUE`](Self::DEFAULT_MAX_QUEUE) others waiting.
    fn default() -> Self {
        Self { deadline: None, max_wait: None, max_queue: Self::DEFAULT_MAX_QUEUE }
    }
}
