use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use http::request;

use crate::error::BoxError;

/// Signs a request.
///
/// A signer reads the head of a request and, if [`body_limit`](Self::body_limit) is set, also its body. It may be
/// asynchronous, for example to get a key from [`KeySource::current`](super::KeySource::current) or from a key service.
///
/// The layer calls the signer once for each attempt, and only for requests to the credential's own origin. The example
/// `sign` in the repository signs with HMAC-SHA256.
///
/// ```
/// use bytes::Bytes;
/// use http::request::Parts;
/// use tower_outbound::auth::{AppCredentials, Sign, BoxSignFuture};
///
/// /// Sends the id, the key and the secret unchanged. No real service uses this scheme.
/// struct Plain(AppCredentials);
///
/// impl Sign for Plain {
///     fn sign<'a>(&'a self, head: &'a mut Parts, _body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
///         Box::pin(async move {
///             head.headers.insert("x-app-id", self.0.app_id().parse()?);
///             head.headers.insert("x-key", self.0.key().header_value());
///             head.headers.insert("x-secret", self.0.secret().header_value());
///             Ok(())
///         })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not sign requests",
    label = "not a `Sign`",
    note = "implement `auth::Sign`, or use a closure with `AuthLayer::from_fn` if the signature depends neither on the body nor on async code"
)]
pub trait Sign: Send + Sync {
    /// Returns the maximum size in bytes of a body that the layer buffers for the signature. A request with a larger
    /// body fails, and nothing is sent.
    ///
    /// Returns `None` by default. The body is then not buffered, and the signature does not depend on it.
    fn body_limit(&self) -> Option<usize> {
        None
    }

    /// Adds the signature to the request. `body` is the complete body, or `None` if there is no
    /// [`body_limit`](Self::body_limit).
    ///
    /// The signer may also change the URI, for example to add the signature to the query. The origin check and the
    /// spans use the original URI. The changed URI is sent without another check, so a signer that changes the origin
    /// sends its signature to the new origin. The signer receives the original URI again for each attempt.
    ///
    /// A signer can add up to 500 header fields. A request with room for fewer fields is rejected before this method is
    /// called.
    ///
    /// If this method returns an error, the call ends and nothing is sent. The error must not contain a secret. If a
    /// header value is a secret, [mark it](http::HeaderValue::set_sensitive) as sensitive.
    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a>;
}

/// The future of [`Sign::sign`].
pub type BoxSignFuture<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

impl<G: Sign + ?Sized> Sign for Arc<G> {
    fn body_limit(&self) -> Option<usize> {
        G::body_limit(self)
    }

    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        G::sign(self, head, body)
    }
}
