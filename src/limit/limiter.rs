use std::{future::Future, num::NonZeroU32, sync::Arc, time::Duration};

use super::{Feedback, Refusal};
use crate::clock::Instant;

/// Decides when a request may be sent. The port behind which every limiter stands, in this process or outside.
///
/// Clones of an implementation share one state, so that every layer made of them shares the quota.
///
/// ```
/// use std::future::{Ready, ready};
/// use tower_outbound::limit::{PermitRequest, Limiter, Refusal, RateLimitLayer};
///
/// /// Lets all through.
/// #[derive(Clone)]
/// struct Open;
///
/// impl Limiter for Open {
///     type Acquire = Ready<Result<(), Refusal>>;
///
///     fn acquire(&self, _: PermitRequest) -> Self::Acquire {
///         ready(Ok(()))
///     }
/// }
///
/// let layer = RateLimitLayer::new(Open);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "not a limiter",
    note = "a limiter is a `TokenBucket` or a `SlidingWindow`, made of a `Quota`, or an implementation of `limit::Limiter`, which must be `Clone`"
)]
pub trait Limiter: Clone {
    /// The wait for the permits of one request. Named, so that the path on which they are there at once
    /// allocates nothing; an adapter that has no name for its future puts it in a
    /// `Pin<Box<dyn Future + Send>>`.
    ///
    /// Dropping it while it waits spends nothing and lets the next in line go; dropping it between the grant and
    /// the poll that would have told loses the grant.
    type Acquire: Future<Output = Result<(), Refusal>>;

    /// Begins the wait. Nothing is spent and no place taken before the future is first polled. The layer calls it at the
    /// first poll of the request's own future, and not before.
    fn acquire(&self, ask: PermitRequest) -> Self::Acquire;

    /// Takes the permits where they are there now, without a wait and without overtaking anybody who waits; `None`
    /// where it can't say, which has spent, counted and refused nothing, and [`acquire`](Self::acquire) is asked. A
    /// request asks it once, when its future is first polled.
    ///
    /// `Some` is what a wait comes to, and no wait follows: `Ok` has spent the permits, which are given back by
    /// [`release`](Self::release) or [`abandon`](Self::abandon), and `Err` refuses the request.
    ///
    /// By default always `None`, by which a limiter loses nothing but speed: `Some` spares a request the future of a
    /// wait, and behind an [`AnyLimiter`](super::AnyLimiter) its box. Of this crate's own a
    /// [`TokenBucket`](super::TokenBucket) of one quota says more, for costs up to its burst, while nobody waits and the
    /// server has said nothing; once its quotas were set anew it always says `None`.
    fn take_at_once(&self, ask: &PermitRequest) -> Option<Result<(), Refusal>> {
        let _ = ask;
        None
    }

    /// The server has said something about its limits in an answer, whose request was [released](Self::release)
    /// before. By default it falls on deaf ears.
    fn observe(&self, feedback: &Feedback) {
        let _ = feedback;
    }

    /// Whether permits that were granted `held` ago are worth nothing any more. Asked when the inner service was
    /// not ready for the request at once: what leaves later than it was counted would fall into another window.
    /// By default every such permit is.
    fn is_stale(&self, held: Duration) -> bool {
        let _ = held;
        true
    }

    /// A request that got its permits has been answered, or was not sent: what the server says is left from now on
    /// has it counted in.
    fn release(&self, cost: NonZeroU32) {
        let _ = cost;
    }

    /// A request that got its permits has failed or was given up: it may yet be on its way, so that what the server
    /// says is left next need not have it counted in. By default like [`release`](Self::release).
    fn abandon(&self, cost: NonZeroU32) {
        self.release(cost);
    }
}

impl<L: Limiter> Limiter for Arc<L> {
    type Acquire = L::Acquire;

    fn acquire(&self, ask: PermitRequest) -> Self::Acquire {
        L::acquire(self, ask)
    }

    fn take_at_once(&self, ask: &PermitRequest) -> Option<Result<(), Refusal>> {
        L::take_at_once(self, ask)
    }

    fn observe(&self, feedback: &Feedback) {
        L::observe(self, feedback);
    }

    fn is_stale(&self, held: Duration) -> bool {
        L::is_stale(self, held)
    }

    fn release(&self, cost: NonZeroU32) {
        L::release(self, cost);
    }

    fn abandon(&self, cost: NonZeroU32) {
        L::abandon(self, cost);
    }
}

/// What one request asks of the limiter: its permits, within these bounds.
///
/// A request that can't be served within its bounds is refused at once, without spending.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PermitRequest {
    /// How many permits it takes; all of them, or none.
    pub cost: NonZeroU32,
    /// The permits are worth nothing after this moment.
    pub deadline: Option<Instant>,
    /// The longest wait; none lets it wait for as long as the deadline allows. Foretold when the request comes, and
    /// looked at again when the server says something and when the request is next. A sliding window with costs above
    /// one may foretell too little, by the gaps that an indivisible cost leaves, and refuse later than it could.
    pub max_wait: Option<Duration>,
    /// The most requests that may be waiting already when this one comes.
    pub max_queue: usize,
}

impl PermitRequest {
    /// 10,000 waiting requests. In a task of its own each holds some 400 bytes where it waits for the limiter alone, and
    /// 3 KB in the whole stack of a preset, so 4 to 30 MB (`benches/memory.rs`).
    pub const DEFAULT_MAX_QUEUE: usize = 10_000;
}

impl Default for PermitRequest {
    /// One permit, no deadline, any wait, at most [`DEFAULT_MAX_QUEUE`](Self::DEFAULT_MAX_QUEUE) others waiting.
    fn default() -> Self {
        Self { cost: NonZeroU32::MIN, deadline: None, max_wait: None, max_queue: Self::DEFAULT_MAX_QUEUE }
    }
}

/// The number of permits that a request takes, put into its extensions; 1 where there is none.
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
