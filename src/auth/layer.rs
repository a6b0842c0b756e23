use std::{convert::Infallible, fmt, sync::Arc};

use http::request;

use super::{AnySign, KeyPlacement, KeySource, Origin, Sign, credential::Credential};
use crate::{config::InvalidConfig, error::BoxError};

/// Adds a credential to every request that goes to the credential's own origin.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::auth::{AuthLayer, KeyPlacement, KeySource, Origin};
///
/// # fn make() -> Result<(), tower_outbound::InvalidConfig> {
/// let keys = KeySource::from_file("/run/secrets/rates")?;
/// let layer = AuthLayer::new(keys, Origin::parse("https://api.example.com")?)?
///     .with_placement(KeyPlacement::header(HeaderName::from_static("x-api-key"))?);
/// # Ok(())
/// # }
/// ```
///
/// The parameter `G` is [`AnySign`](super::AnySign) in a layer of [`from_sign`](AuthLayer::from_sign) and in a
/// [`StackLayer`](crate::stack::StackLayer). It is `Infallible` in any other layer.
///
/// # Clone
///
/// All clones of a layer, and the services made from them, share the key source, the closure or the signer.
#[derive(Clone)]
pub struct AuthLayer<G = Infallible> {
    pub(super) credential: Credential<G>,
    /// Empty if there is no credential, or if the credential is that of a pool, whose members have their own origins.
    pub(super) origins: Vec<Origin>,
}

impl AuthLayer {
    /// Creates a layer that sends a key to `origin`, as a bearer token by default.
    ///
    /// # Errors
    ///
    /// Returns an error for an origin without TLS. Exceptions are loopback hosts and origins that [allow
    /// plaintext](Origin::with_plaintext).
    pub fn new(keys: impl Into<KeySource>, origin: Origin) -> Result<Self, InvalidConfig> {
        Self::of(Credential::key(keys, &KeyPlacement::default()), origin)
    }

    /// Creates a layer whose closure `authorize` adds the credential to the head of each request to `origin`.
    ///
    /// The layer calls the closure once for each attempt. If the closure returns an error, the call ends and nothing is
    /// sent. The error must not contain the credential. The closure may change the URI, as a
    /// [`Sign`](super::Sign::sign) may: the layer checks the origin before, and not again. The closure can add up to
    /// 500 header fields. A request with room for fewer fields is rejected before the closure is called.
    ///
    /// If the credential depends on the body, or is computed asynchronously, use [`from_sign`](AuthLayer::from_sign).
    ///
    /// ```
    /// use tower_outbound::auth::{AuthLayer, Origin};
    ///
    /// let layer = AuthLayer::from_fn(
    ///     |head| {
    ///         head.headers.insert("x-signature", http::HeaderValue::from_static("made up"));
    ///         Ok(())
    ///     },
    ///     Origin::parse("https://api.example.com")?,
    /// )?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new).
    pub fn from_fn(
        authorize: impl Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
        origin: Origin,
    ) -> Result<Self, InvalidConfig> {
        Self::of(Credential::Closure(Arc::new(authorize)), origin)
    }
}

impl AuthLayer<AnySign> {
    /// Creates a layer that signs every request to `origin`.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{HeaderValue, request::Parts};
    /// use tower_outbound::auth::{AuthLayer, BoxSignFuture, Origin, Sign};
    ///
    /// struct Signer;
    ///
    /// impl Sign for Signer {
    ///     fn sign<'a>(&'a self, head: &'a mut Parts, _body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
    ///         Box::pin(async move {
    ///             let mut signature = HeaderValue::from_static("the signature of the head");
    ///             signature.set_sensitive(true);
    ///             head.headers.insert("x-signature", signature);
    ///             Ok(())
    ///         })
    ///     }
    /// }
    ///
    /// let layer = AuthLayer::from_sign(Signer, Origin::parse("https://api.example.com")?)?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// The inner service must be `Clone`, and receives the same body type. The layer buffers a body in memory if the
    /// signature depends on it, so the body type must implement `From<Bytes>`: [`Body`](crate::Body), `Full<Bytes>`, or
    /// [`ReplayBody`](crate::body::ReplayBody) under a retry layer. A request whose buffered body has
    /// trailers fails, and nothing is sent.
    ///
    /// The layer signs a request after the limiter has granted its permit. The safety margin of a quota should
    /// therefore cover the time that a signature takes.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](AuthLayer::new).
    pub fn from_sign(sign: impl Sign + 'static, origin: Origin) -> Result<Self, InvalidConfig> {
        Self::of(Credential::Signature(AnySign::new(sign)), origin)
    }
}

impl<G> AuthLayer<G> {
    /// Creates a layer that sends a credential to `origin`.
    pub(crate) fn of(credential: Credential<G>, origin: Origin) -> Result<Self, InvalidConfig> {
        Self { origins: Vec::new(), credential }.with_allowed_origin(origin)
    }

    /// Sets where the key is placed on the request. Has no effect if the credential is not a key, or if the stack has a
    /// [`Pool`](crate::stack::Pool).
    pub fn with_placement(mut self, placement: KeyPlacement) -> Self {
        self.credential = self.credential.with_placement(&placement);
        self
    }

    /// Also sends the credential to `origin`, such as another host to which the service redirects. Has no effect in a
    /// stack without a credential, or with a [`Pool`](crate::stack::Pool), whose members have their own origins.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](AuthLayer::new).
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        // The members of a pool have their own origins.
        if !matches!(self.credential, Credential::None | Credential::Members(_)) {
            self.origins.push(origin.for_credential()?);
        }
        Ok(self)
    }
}

impl<G> fmt::Debug for AuthLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
