use std::{any::Any, fmt, sync::Arc};

use super::{
    core::{CoreSettings, has_quota},
    limiter::{PermitRequest, SelectLimiter},
    local_limiter::LocalLimiter,
    shell::acquire::Acquire,
};
use crate::{call::RequestHead, policy::Quota};

/// Erases the type of a limiter, or of a [`SelectLimiter`] such as a [`Keyed`](super::Keyed). A request needs no
/// additional allocation.
///
/// Use an `AnyLimiter` to choose a limiter at run time. A [`StackBuilder`](crate::stack::StackBuilder) holds one.
///
/// ```
/// use tower_outbound::{Quota, limit::{AnyLimiter, RateLimitLayer, LocalLimiter}};
///
/// let quota = Quota::per_minute(100)?;
/// let counts_a_window = std::env::var_os("COUNTS_A_WINDOW").is_some();
/// let limiter = if counts_a_window {
///     AnyLimiter::new(LocalLimiter::sliding_window(quota))
/// } else {
///     AnyLimiter::new(LocalLimiter::token_bucket(quota))
/// };
/// let layer = RateLimitLayer::new(limiter.clone());
///
/// // The limiter inside is still accessible.
/// if let Some(bucket) = limiter.downcast_ref::<LocalLimiter>() {
///     assert_eq!(bucket.snapshot().granted, 0);
/// }
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Clone
///
/// All clones share the limiter.
#[derive(Debug, Clone)]
pub struct AnyLimiter {
    inner: Arc<dyn Erased>,
}

/// The object-safe form of a [`SelectLimiter`].
trait Erased: SelectLimiter + fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
}

impl<L: SelectLimiter + fmt::Debug + Send + Sync + 'static> Erased for L {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl AnyLimiter {
    /// Erases the type of `limiter`.
    ///
    /// The `Debug` output of the result contains the `Debug` output of the limiter. So does the output of every layer,
    /// service and builder that holds the result. The `Debug` output of a custom limiter must therefore not contain a
    /// secret.
    pub fn new<L>(limiter: L) -> Self
    where
        L: SelectLimiter + fmt::Debug + Send + Sync + 'static,
    {
        match (&limiter as &dyn Any).downcast_ref::<Self>() {
            Some(erased) => erased.clone(),
            None => Self { inner: Arc::new(limiter) },
        }
    }

    /// Creates the limiter of a stack builder. Without a quota, it is adaptive. If no limit exceeds 10,000 requests,
    /// it is a paced window. Otherwise it is a token bucket, because the log of a paced window would be large.
    pub(crate) fn of_quotas(quotas: &[Quota], settings: CoreSettings) -> Self {
        const LARGEST_LOG: u32 = 10_000;
        let all = quotas.iter().copied();
        let has_quota = has_quota(quotas);
        let windows = quotas.iter().filter(|quota| quota.refill().is_none() && quota.counts_requests());
        let limiter = match windows.map(Quota::limit).max() {
            _ if !has_quota => LocalLimiter::adaptive(all),
            Some(limit) if limit > LARGEST_LOG => LocalLimiter::token_bucket(all),
            _ => LocalLimiter::paced_window(all),
        };
        Self::new(limiter.with(|own| {
            let initial_burst = settings.initial_burst.filter(|_| has_quota);
            *own = CoreSettings { rule: own.rule, initial_burst, ..settings };
        }))
    }

    /// Returns whether both are clones of one limiter. Only a [`LocalLimiter`] is compared by its own clones.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(Self::downcast_ref::<LocalLimiter>);
        let is_local = || own.zip(others).is_some_and(|(own, other)| Arc::ptr_eq(&own.shared, &other.shared));
        Arc::ptr_eq(&self.inner, &other.inner) || is_local()
    }

    /// Returns the inner limiter if its type is `L`, for example to take its snapshot or to change its quotas.
    pub fn downcast_ref<L: SelectLimiter + 'static>(&self) -> Option<&L> {
        // Without the dereference, the call would use the `as_any` of the `Arc`.
        (*self.inner).as_any().downcast_ref()
    }
}

impl SelectLimiter for AnyLimiter {
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        self.inner.acquire_for(head, request)
    }
}
