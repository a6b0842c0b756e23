use super::{Limiter, Refusal};
use crate::call::RequestHead;

/// Which limiter a request goes through: every limiter is its own answer, and [`Keyed`](super::Keyed) has one
/// for each key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a limiter nor a choice of one",
    note = "a limiter is a `TokenBucket` or a `SlidingWindow`, made of a `Quota`, a `Keyed` of them, or an implementation of `limit::Limiter`"
)]
pub trait SelectLimiter: Clone {
    /// The limiter.
    type Limiter: Limiter;

    /// The limiter of this request.
    ///
    /// # Errors
    ///
    /// When there is none for it, and can be none.
    fn select(&self, head: RequestHead<'_>) -> Result<Self::Limiter, Refusal>;
}

impl<L: Limiter> SelectLimiter for L {
    type Limiter = L;

    fn select(&self, _: RequestHead<'_>) -> Result<L, Refusal> {
        Ok(self.clone())
    }
}
