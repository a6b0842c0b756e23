use std::{
    any::Any,
    fmt,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{
    Acquire, Feedback, Limiter, PermitRequest, Refusal, SlidingWindow, TokenBucket,
    erased::{self, Boxed},
    gcra::Gcra,
    ring::Rings,
};

/// Any limiter behind one type, for a program that chooses its limiter at run time.
///
/// Queues, refuses and counts as the limiter inside does. A [`TokenBucket`] and a [`SlidingWindow`] add no cost. Any
/// other limiter allocates its future, once for each request whose permits it does not [take at
/// once](Limiter::take_at_once).
///
/// ```
/// use tower_outbound::{Quota, limit::{AnyLimiter, RateLimitLayer, SlidingWindow, TokenBucket}};
///
/// let quota = Quota::per_minute(100)?;
/// let counts_a_window = std::env::var_os("COUNTS_A_WINDOW").is_some();
/// let limiter = if counts_a_window {
///     AnyLimiter::new(SlidingWindow::new(quota))
/// } else {
///     AnyLimiter::new(TokenBucket::new(quota))
/// };
/// let layer = RateLimitLayer::new(limiter.clone());
///
/// // The limiter inside is still accessible.
/// if let Some(bucket) = limiter.downcast_ref::<TokenBucket>() {
///     assert_eq!(bucket.snapshot().granted, 0);
/// }
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Clone
///
/// Clones share the limiter.
///
/// # Debug
///
/// Shows the state of a [`TokenBucket`] or a [`SlidingWindow`]. Of any other limiter it shows only the type name,
/// because the limiter need not be `Debug`.
#[derive(Clone)]
pub struct AnyLimiter {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    // The limiters of this crate need no box for their futures. Presets use the first.
    Bucket(TokenBucket),
    Window(SlidingWindow),
    Other(Arc<dyn erased::Erased>),
}

impl AnyLimiter {
    /// Erases the type of `limiter`. Shares it with its clones.
    pub fn new<L>(limiter: L) -> Self
    where
        L: Limiter + Send + Sync + 'static,
        L::Acquire: Send,
    {
        let any: &dyn Any = &limiter;
        if let Some(erased) = any.downcast_ref::<Self>() {
            return erased.clone();
        }
        if let Some(bucket) = any.downcast_ref::<TokenBucket>() {
            return bucket.clone().into();
        }
        if let Some(window) = any.downcast_ref::<SlidingWindow>() {
            return window.clone().into();
        }
        Self { inner: Inner::Other(Arc::new(limiter)) }
    }

    /// Returns the limiter inside if it is an `L`, for its snapshot or to change its quotas.
    pub fn downcast_ref<L: Limiter + 'static>(&self) -> Option<&L> {
        self.as_any().downcast_ref()
    }

    pub(super) fn as_any(&self) -> &dyn Any {
        match &self.inner {
            Inner::Bucket(bucket) => bucket,
            Inner::Window(window) => window,
            Inner::Other(other) => other.as_any(),
        }
    }
}

impl From<TokenBucket> for AnyLimiter {
    fn from(bucket: TokenBucket) -> Self {
        Self { inner: Inner::Bucket(bucket) }
    }
}

impl From<SlidingWindow> for AnyLimiter {
    fn from(window: SlidingWindow) -> Self {
        Self { inner: Inner::Window(window) }
    }
}

impl Limiter for AnyLimiter {
    type Acquire = AnyAcquire;

    fn acquire(&self, ask: PermitRequest) -> AnyAcquire {
        let wait = match &self.inner {
            Inner::Bucket(bucket) => Wait::Bucket { acquire: bucket.acquire(ask) },
            Inner::Window(window) => Wait::Window { acquire: window.acquire(ask) },
            Inner::Other(other) => Wait::Other { acquire: other.acquire(ask) },
        };
        AnyAcquire { wait }
    }

    fn take_at_once(&self, ask: &PermitRequest) -> Option<Result<(), Refusal>> {
        match &self.inner {
            Inner::Bucket(bucket) => bucket.take_at_once(ask),
            Inner::Window(window) => window.take_at_once(ask),
            Inner::Other(other) => other.take_at_once(ask),
        }
    }

    fn observe(&self, feedback: &Feedback) {
        match &self.inner {
            Inner::Bucket(bucket) => bucket.observe(feedback),
            Inner::Window(window) => window.observe(feedback),
            Inner::Other(other) => other.observe(feedback),
        }
    }

    fn is_stale(&self, held: Duration) -> bool {
        match &self.inner {
            Inner::Bucket(bucket) => bucket.is_stale(held),
            Inner::Window(window) => window.is_stale(held),
            Inner::Other(other) => other.is_stale(held),
        }
    }

    fn release(&self, cost: NonZeroU32) {
        match &self.inner {
            Inner::Bucket(bucket) => bucket.release(cost),
            Inner::Window(window) => window.release(cost),
            Inner::Other(other) => other.release(cost),
        }
    }

    fn abandon(&self, cost: NonZeroU32) {
        match &self.inner {
            Inner::Bucket(bucket) => bucket.abandon(cost),
            Inner::Window(window) => window.abandon(cost),
            Inner::Other(other) => other.abandon(cost),
        }
    }
}

impl fmt::Debug for AnyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("AnyLimiter");
        match &self.inner {
            Inner::Bucket(bucket) => shown.field(bucket),
            Inner::Window(window) => shown.field(window),
            Inner::Other(other) => shown.field(&format_args!("{}", other.name())),
        };
        shown.finish()
    }
}

pin_project! {
    /// The future of [`AnyLimiter`]: waits for the permits of one request, as the limiter inside does.
    pub struct AnyAcquire {
        #[pin]
        wait: Wait,
    }
}

pin_project! {
    #[project = WaitProj]
    enum Wait {
        Bucket { #[pin] acquire: Acquire<Gcra> },
        Window { #[pin] acquire: Acquire<Rings> },
        Other { acquire: Boxed },
    }
}

impl Future for AnyAcquire {
    type Output = Result<(), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().wait.project() {
            WaitProj::Bucket { acquire } => acquire.poll(cx),
            WaitProj::Window { acquire } => acquire.poll(cx),
            WaitProj::Other { acquire } => acquire.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for AnyAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("AnyAcquire");
        match &self.wait {
            Wait::Bucket { acquire } => shown.field(acquire),
            Wait::Window { acquire } => shown.field(acquire),
            Wait::Other { .. } => return shown.finish_non_exhaustive(),
        };
        shown.finish()
    }
}
