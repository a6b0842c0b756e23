use std::{
    any::{Any, type_name},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    algorithm::{sliding_window::Logs, token_bucket::Buckets},
    limiter::{Limiter, PermitRequest},
    local::{SlidingWindow, TokenBucket},
    permit::Permit,
    queue::acquire::Acquire,
};
use crate::error::Refusal;

/// Any limiter behind one type, for a program that chooses its limiter at run time.
///
/// A [`TokenBucket`] and a [`SlidingWindow`] add no cost. Any other limiter allocates its future, once for each request
/// for which [`try_acquire_with`](Limiter::try_acquire_with) returns `None`.
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
    Other(Arc<dyn ErasedLimiter>),
}

/// [`Limiter`] without its types. The names differ, so that a limiter's own methods stay unambiguous.
trait ErasedLimiter: Erased {
    fn acquire_boxed(&self, request: &PermitRequest) -> Boxed;
    fn try_acquire_erased(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>>;
}

/// A value without its type.
pub(super) trait Erased: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn type_name(&self) -> &'static str;
}

impl<T: Any + Send + Sync> Erased for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn type_name(&self) -> &'static str {
        type_name::<T>()
    }
}

type Boxed = Pin<Box<dyn Future<Output = Result<Permit<'static>, Refusal>> + Send>>;

impl<L> ErasedLimiter for L
where
    L: Limiter + Send + Sync + 'static,
    L::Acquire: Send,
{
    fn acquire_boxed(&self, request: &PermitRequest) -> Boxed {
        Box::pin(self.acquire_with(request))
    }

    fn try_acquire_erased(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        self.try_acquire_with(request)
    }
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
        let inner = if let Some(bucket) = any.downcast_ref::<TokenBucket>() {
            Inner::Bucket(bucket.clone())
        } else if let Some(window) = any.downcast_ref::<SlidingWindow>() {
            Inner::Window(window.clone())
        } else {
            Inner::Other(Arc::new(limiter))
        };
        Self { inner }
    }

    /// Returns the limiter inside if it is an `L`, for its snapshot or to change its quotas.
    pub fn downcast_ref<L: Limiter + 'static>(&self) -> Option<&L> {
        self.as_any().downcast_ref()
    }

    pub(super) fn as_any(&self) -> &dyn Any {
        match &self.inner {
            Inner::Bucket(bucket) => bucket,
            Inner::Window(window) => window,
            // The inner value, not the `Arc`.
            Inner::Other(other) => (**other).as_any(),
        }
    }
}

impl Limiter for AnyLimiter {
    type Acquire = AnyAcquire;

    fn acquire_with(&self, request: &PermitRequest) -> AnyAcquire {
        let wait = match &self.inner {
            Inner::Bucket(bucket) => Wait::Bucket(bucket.acquire_with(request)),
            Inner::Window(window) => Wait::Window(window.acquire_with(request)),
            Inner::Other(other) => Wait::Other(other.acquire_boxed(request)),
        };
        AnyAcquire { wait }
    }

    fn try_acquire_with(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        match &self.inner {
            Inner::Bucket(bucket) => bucket.try_acquire_with(request),
            Inner::Window(window) => window.try_acquire_with(request),
            Inner::Other(other) => other.try_acquire_erased(request),
        }
    }
}

impl fmt::Debug for AnyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("AnyLimiter");
        match &self.inner {
            Inner::Bucket(bucket) => shown.field(bucket),
            Inner::Window(window) => shown.field(window),
            Inner::Other(other) => shown.field(&format_args!("{}", (**other).type_name())),
        };
        shown.finish()
    }
}

/// The future of [`AnyLimiter`]: waits for the permit of one request.
pub struct AnyAcquire {
    wait: Wait,
}

enum Wait {
    Bucket(Acquire<Buckets>),
    Window(Acquire<Logs>),
    Other(Boxed),
}

impl Future for AnyAcquire {
    type Output = Result<Permit<'static>, Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().wait {
            Wait::Bucket(acquire) => Pin::new(acquire).poll(cx),
            Wait::Window(acquire) => Pin::new(acquire).poll(cx),
            Wait::Other(acquire) => acquire.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for AnyAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyAcquire").finish_non_exhaustive()
    }
}
