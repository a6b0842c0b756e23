use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::request;
use tower_layer::Layer;

use super::{Origin, Signed, layer::check};
use crate::error::{BoxError, InvalidConfig};

/// Signs a request: sees its head and, when it asks for it, its body, and may await something, such as a key from
/// [`Keys::current`](super::Keys::current) or an answer of a key service.
///
/// Called once for each attempt, and only for requests to the credential's own origin. The repository's
/// example `sign` signs with HMAC-SHA256.
///
/// ```
/// use bytes::Bytes;
/// use http::request::Parts;
/// use tower_outbound::auth::{AppCredentials, Sign, Signing};
///
/// /// Sends the three as they are: a scheme that is made up.
/// struct Plain(AppCredentials);
///
/// impl Sign for Plain {
///     fn sign<'a>(&'a self, head: &'a mut Parts, _body: Option<&'a Bytes>) -> Signing<'a> {
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
    note = "implement `auth::Sign`; what needs no body and awaits nothing can be an `auth::Authorize`, for which a closure will do"
)]
pub trait Sign: Send + Sync {
    /// The most bytes of a body that are read into memory to be signed; a larger body is an error, and nothing is
    /// sent. None, by default, leaves the body alone.
    fn body_limit(&self) -> Option<usize> {
        None
    }

    /// Puts the signature on the request. `body` is all of it, when [`body_limit`](Self::body_limit) asks for it.
    ///
    /// An error ends the call before anything is sent; it must not contain a secret. A header's value that is one
    /// should be [marked sensitive](http::HeaderValue::set_sensitive).
    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> Signing<'a>;
}

/// What [`Sign::sign`] returns.
pub type Signing<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

impl<G: Sign + ?Sized> Sign for Arc<G> {
    fn body_limit(&self) -> Option<usize> {
        G::body_limit(self)
    }

    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> Signing<'a> {
        G::sign(self, head, body)
    }
}

/// Signs every request to its own origin.
///
/// The inner service takes the body that it is given; one that is signed is in memory from then on, so it has to be
/// a [`FromBuffered`](crate::body::FromBuffered). Trailers of such a body are dropped.
///
/// It stands where [`AuthLayer`](super::AuthLayer) stands: what signing takes is time between a limiter's permit and
/// the server, which the margin of a quota should allow for.
///
/// # Clone
///
/// Clones, and the services that they make, share the signer.
pub struct SignLayer<G> {
    sign: Arc<G>,
    origins: Arc<[Origin]>,
}

impl<G: Sign> SignLayer<G> {
    /// What `sign` puts on a request goes to `origin` and nowhere else.
    ///
    /// # Errors
    ///
    /// When the origin has no TLS and is not loopback, and [`Origin::allow_plaintext`] was not said.
    pub fn new(sign: G, origin: Origin) -> Result<Self, InvalidConfig> {
        check(&origin)?;
        Ok(Self { sign: Arc::new(sign), origins: Arc::new([origin]) })
    }

    /// Signs requests to `origin`, too.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        check(&origin)?;
        self.origins = self.origins.iter().cloned().chain([origin]).collect();
        Ok(self)
    }
}

impl<G> Clone for SignLayer<G> {
    fn clone(&self) -> Self {
        Self { sign: Arc::clone(&self.sign), origins: Arc::clone(&self.origins) }
    }
}

impl<S, G> Layer<S> for SignLayer<G> {
    type Service = Signed<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        Signed::new(inner, Arc::clone(&self.sign), Arc::clone(&self.origins))
    }
}

impl<G> fmt::Debug for SignLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
