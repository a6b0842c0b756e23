use std::{fmt, sync::Arc};

use super::Sign;
use crate::{auth::Origin, config::InvalidConfig};

/// Signs every request to the credential's own origin.
///
/// ```
/// use bytes::Bytes;
/// use http::{HeaderValue, request::Parts};
/// use tower_outbound::auth::{Origin, Sign, SignLayer, BoxSignFuture};
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
/// let layer = SignLayer::new(Signer, Origin::parse("https://api.example.com")?)?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// The inner service receives the same body type. The layer buffers a body in memory if the signature depends on it, so
/// the body type must implement `From<Bytes>`: [`Body`](crate::Body), `Full<Bytes>`, or
/// [`ReplayBody`](crate::body::ReplayBody) under a retry layer. The trailers of a buffered body are dropped.
///
/// Place this layer where an [`AuthLayer`](crate::auth::AuthLayer) would be. It signs a request after the limiter has
/// granted its permit. The safety margin of a quota should therefore cover the time that a signature takes.
///
/// # Clone
///
/// All clones of a layer, and the services made from them, share the signer.
#[derive(Clone)]
pub struct SignLayer {
    pub(super) sign: Arc<dyn Sign>,
    pub(super) origins: Arc<[Origin]>,
}

impl SignLayer {
    /// Creates a layer that signs requests to `origin` with `sign`. Requests to other origins are sent without a
    /// signature.
    ///
    /// # Errors
    ///
    /// Returns an error for an origin without TLS. Exceptions are loopback hosts and origins that [allow
    /// plaintext](Origin::with_plaintext).
    pub fn new(sign: impl Sign + 'static, origin: Origin) -> Result<Self, InvalidConfig> {
        Ok(Self { sign: Arc::new(sign), origins: [origin.for_credential()?].into() })
    }

    /// Also signs requests to `origin`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new).
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        self.origins = self.origins.iter().cloned().chain([origin.for_credential()?]).collect();
        Ok(self)
    }
}

impl fmt::Debug for SignLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
