use bytes::Bytes;
use http_body::Body as HttpBody;
use http_body_util::Full;

use super::{Body, ReplayBody};
use crate::error::BoxError;

/// A request's body that can be made of bytes in memory: what a layer that has read a body, to sign it, hands on.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be made of bytes, as the body of a signed request must",
    label = "not a `FromBuffered`",
    note = "`Body`, `Full<Bytes>` and the `ReplayBody<B>` of a retry layer above can be; `Body::new` makes a `Body` of any other"
)]
pub trait FromBuffered: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Sized + 'static {
    /// Sends these bytes.
    fn from_buffered(data: Bytes) -> Self;
}

impl FromBuffered for Body {
    fn from_buffered(data: Bytes) -> Self {
        Self::from(data)
    }
}

impl FromBuffered for Full<Bytes> {
    fn from_buffered(data: Bytes) -> Self {
        Self::new(data)
    }
}

impl<B> FromBuffered for ReplayBody<B>
where
    B: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    fn from_buffered(data: Bytes) -> Self {
        Self::of_bytes(data)
    }
}
