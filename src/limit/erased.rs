use std::{
    any::{Any, type_name},
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    time::Duration,
};

use super::{Feedback, Limiter, PermitRequest, Refusal};

/// The port without its types. Not for import: its methods would stand beside the port's on every limiter.
pub(super) trait Erased: Send + Sync {
    fn acquire(&self, ask: PermitRequest) -> Boxed;
    fn take_at_once(&self, ask: &PermitRequest) -> Option<Result<(), Refusal>>;
    fn observe(&self, feedback: &Feedback);
    fn is_stale(&self, held: Duration) -> bool;
    fn release(&self, cost: NonZeroU32);
    fn abandon(&self, cost: NonZeroU32);
    fn as_any(&self) -> &dyn Any;
    fn name(&self) -> &'static str;
}

pub(super) type Boxed = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send>>;

impl<L> Erased for L
where
    L: Limiter + Send + Sync + 'static,
    L::Acquire: Send,
{
    fn acquire(&self, ask: PermitRequest) -> Boxed {
        Box::pin(Limiter::acquire(self, ask))
    }

    fn take_at_once(&self, ask: &PermitRequest) -> Option<Result<(), Refusal>> {
        Limiter::take_at_once(self, ask)
    }

    fn observe(&self, feedback: &Feedback) {
        Limiter::observe(self, feedback);
    }

    fn is_stale(&self, held: Duration) -> bool {
        Limiter::is_stale(self, held)
    }

    fn release(&self, cost: NonZeroU32) {
        Limiter::release(self, cost);
    }

    fn abandon(&self, cost: NonZeroU32) {
        Limiter::abandon(self, cost);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &'static str {
        type_name::<L>()
    }
}
