use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::request;
use tower_layer::Layer;

use super::{Origin, SignService, layer::check};
use crate::error::{BoxError, InvalidConfig};

/// Signs a request.
///
/// A signer reads the request's head and, if [`body_limit`](Self::body_limit) is set, its body. It may await, for
/// example a key from [`KeySource::current`](super::KeySource::current) or the response of a key service.
///
/// The layer calls it once for each attempt, and only for requests to the credential's own origin. The repository's
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
    note = "implement `auth::Sign`, wrap an `Arc<dyn Sign>` in `auth::AnySign`, or use a closure with `AuthLayer` if the signature needs no body and no await"
)]
pub trait Sign: Send + Sync {
    /// Returns the size in bytes up to which the layer buffers a body for the signature. A request with a larger body
    /// fails, and nothing is sent.
    ///
    /// The default, `None`, signs without the body.
    fn body_limit(&self) -> Option<usize> {
        None
    }

    /// Puts the signature on the request. `body` is the whole body, or `None` without a
    /// [`body_limit`](Self::body_limit).
    ///
    /// The head has room for 500 more header fields. A request without that room is rejected before this call.
    ///
    /// An error ends the call before anything is sent. The error must not contain a secret.
    /// [Mark](http::HeaderValue::set_sensitive) a header value that is a secret as sensitive.
    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> Signing<'a>;
}

/// The future of [`Sign::sign`].
pub type Signing<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

impl<G: Sign> Sign for Arc<G> {
    fn body_limit(&self) -> Option<usize> {
        G::body_limit(self)
    }

    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> Signing<'a> {
        G::sign(self, head, body)
    }
}

/// A signer whose type is erased.
///
/// A newtype, because `tokio::spawn` rejects the future of a service over `Arc<dyn Sign>`: rustc cannot prove that it
/// is `Send`.
///
/// # Clone
///
/// Clones share the signer.
#[derive(Clone)]
pub struct AnySign(Arc<dyn Sign>);

impl AnySign {
    /// Erases the type of `sign`.
    pub fn new(sign: impl Sign + 'static) -> Self {
        Self(Arc::new(sign))
    }
}

impl From<Arc<dyn Sign>> for AnySign {
    fn from(sign: Arc<dyn Sign>) -> Self {
        Self(sign)
    }
}

impl Sign for AnySign {
    fn body_limit(&self) -> Option<usize> {
        self.0.body_limit()
    }

    fn sign<'a>(&'a self, head: &'a mut request::Parts, body: Option<&'a Bytes>) -> Signing<'a> {
        self.0.sign(head, body)
    }
}

impl fmt::Debug for AnySign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnySign").finish_non_exhaustive()
    }
}

/// Signs every request to its own origin.
///
/// The inner service takes the same body type. The layer buffers a body for its signature in memory, so the type must
/// implement [`FromBuffered`](crate::body::FromBuffered). It drops the trailers of such a body.
///
/// The layer goes where [`AuthLayer`](super::AuthLayer) goes. It signs after the limiter's grant, so the safety margin
/// of a quota should cover the time that a signature takes.
///
/// # Clone
///
/// Clones, and the services that they make, share the signer.
pub struct SignLayer<G> {
    sign: Arc<G>,
    origins: Arc<[Origin]>,
}

impl<G: Sign> SignLayer<G> {
    /// Signs requests to `origin` with `sign`. Requests to any other origin pass without a signature.
    ///
    /// # Errors
    ///
    /// Returns an error if the origin has neither TLS nor a loopback host, unless it
    /// [allows plaintext](Origin::allow_plaintext).
    pub fn new(sign: G, origin: Origin) -> Result<Self, InvalidConfig> {
        check(&origin)?;
        Ok(Self { sign: Arc::new(sign), origins: Arc::new([origin]) })
    }

    /// Also signs requests to `origin`.
    ///
    /// # Errors
    ///
    /// Returns an error as [`new`](Self::new) does.
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
    type Service = SignService<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        SignService::new(inner, Arc::clone(&self.sign), Arc::clone(&self.origins))
    }
}

impl<G> fmt::Debug for SignLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
