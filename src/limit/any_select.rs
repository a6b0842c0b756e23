use std::{any::Any, fmt, sync::Arc};

use super::{
    any::{AnyLimiter, Erased},
    limiter::{Limiter, SelectLimiter},
};
use crate::{call::RequestHead, error::Refusal};

/// Any limiter, or any [`SelectLimiter`] such as a [`Keyed`](super::Keyed), behind one type. A
/// [`StackBuilder`](crate::stack::StackBuilder) holds one.
///
/// - A limiter has the cost of an [`AnyLimiter`].
/// - A `Keyed` adds no allocation.
/// - Any other [`SelectLimiter`] allocates once for each request, unless it selects a [`TokenBucket`](super::TokenBucket) or a
///   [`SlidingWindow`](super::SlidingWindow).
///
/// # Clone
///
/// Clones share the limiters.
#[derive(Clone)]
pub struct AnySelect {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    // Unboxed, because every request of a preset selects its limiter.
    One(AnyLimiter),
    Choice(Arc<dyn ErasedSelect>),
}

/// [`SelectLimiter`] without its types.
trait ErasedSelect: Erased {
    fn select_any(&self, head: RequestHead<'_>) -> Result<AnyLimiter, Refusal>;
}

impl<S> ErasedSelect for S
where
    S: SelectLimiter + Send + Sync + 'static,
    S::Limiter: Send + Sync + 'static,
    <S::Limiter as Limiter>::Acquire: Send,
{
    fn select_any(&self, head: RequestHead<'_>) -> Result<AnyLimiter, Refusal> {
        self.select(head).map(AnyLimiter::new)
    }
}

impl AnySelect {
    /// Erases the type of `select`, such as a limiter or a `Keyed`. Shares its limiters with its clones.
    pub fn new<S>(select: S) -> Self
    where
        S: SelectLimiter + Send + Sync + 'static,
        S::Limiter: Send + Sync + 'static,
        <S::Limiter as Limiter>::Acquire: Send,
    {
        let any: &dyn Any = &select;
        if let Some(erased) = any.downcast_ref::<Self>() {
            return erased.clone();
        }
        let inner = match any.downcast_ref::<S::Limiter>() {
            Some(limiter) => Inner::One(AnyLimiter::new(limiter.clone())),
            None => Inner::Choice(Arc::new(select)),
        };
        Self { inner }
    }

    /// Returns the `select` inside if it is an `S`, for example to read the snapshot of a
    /// [`TokenBucket`](super::TokenBucket).
    pub fn downcast_ref<S: SelectLimiter + 'static>(&self) -> Option<&S> {
        match &self.inner {
            Inner::One(limiter) => limiter.as_any().downcast_ref(),
            Inner::Choice(choice) => (**choice).as_any().downcast_ref(),
        }
    }
}

impl SelectLimiter for AnySelect {
    type Limiter = AnyLimiter;

    fn select(&self, head: RequestHead<'_>) -> Result<AnyLimiter, Refusal> {
        match &self.inner {
            Inner::One(limiter) => Ok(limiter.clone()),
            Inner::Choice(choice) => choice.select_any(head),
        }
    }
}

impl fmt::Debug for AnySelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner {
            Inner::One(limiter) => limiter.fmt(f),
            Inner::Choice(choice) => {
                f.debug_tuple("AnySelect").field(&format_args!("{}", (**choice).type_name())).finish()
            }
        }
    }
}
