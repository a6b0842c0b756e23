use http::{Extensions, HeaderMap, Method, Request, Uri};

use super::{Limiter, Refusal};

/// The head of a request, to draw a key or a cost from.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI, whose host is a key that many want.
    pub uri: &'a Uri,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// What the caller and the layers outside have put there.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// The head of this request.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// Which limiter a request goes through: every limiter is its own answer, and [`Keyed`](super::Keyed) has one
/// for each key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a limiter nor a choice of one",
    note = "a limiter is a `TokenBucket` or a `SlidingWindow`, made of a `Quota`, a `Keyed` of them, or an implementation of `limit::Limiter`"
)]
pub trait Select: Clone {
    /// The limiter.
    type Limiter: Limiter;

    /// The limiter of this request.
    ///
    /// # Errors
    ///
    /// When there is none for it, and can be none.
    fn select(&self, head: Head<'_>) -> Result<Self::Limiter, Refusal>;
}

impl<L: Limiter> Select for L {
    type Limiter = L;

    fn select(&self, _: Head<'_>) -> Result<L, Refusal> {
        Ok(self.clone())
    }
}
