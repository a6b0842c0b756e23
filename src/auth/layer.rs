use std::{fmt, sync::Arc};

use http::request;

use super::{
    KeyPlacement, KeySource, Origin,
    credential::{Credential, Hook},
};
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
/// # Clone
///
/// All clones of a layer, and the services made from them, share the key source or the closure.
#[derive(Clone)]
pub struct AuthLayer {
    pub(super) credential: Arc<Credential>,
    pub(super) origins: Arc<[Origin]>,
    /// The layers of the members of a pool. `None` without a pool.
    pub(super) members: Option<Arc<[Self]>>,
}

impl AuthLayer {
    /// Creates a layer that sends a key to `origin`, as a bearer token by default.
    ///
    /// # Errors
    ///
    /// Returns an error for an origin without TLS. Exceptions are loopback hosts and origins that [allow
    /// plaintext](Origin::with_plaintext).
    pub fn new(keys: impl Into<KeySource>, origin: Origin) -> Result<Self, InvalidConfig> {
        let credential = Credential::key(keys.into(), KeyPlacement::default());
        Self::with_credential(credential, origin)
    }

    /// Creates a layer whose closure `authorize` adds the credential to the head of each request to `origin`.
    ///
    /// The layer calls the closure once for each attempt. If the closure returns an error, the call ends and nothing is
    /// sent. The error must not contain the credential. The closure may change the URI, as a
    /// [`Sign`](super::Sign::sign) may: the layer checks the origin before, and not again. The closure can add up to
    /// 500 header fields. A request with room for fewer fields is rejected before the closure is called.
    ///
    /// If the credential depends on the body, or is computed asynchronously, use a [`SignLayer`](super::SignLayer).
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
        let credential = Credential::Hook(Hook::new(authorize));
        Self::with_credential(credential, origin)
    }

    fn with_credential(credential: Credential, origin: Origin) -> Result<Self, InvalidConfig> {
        let origins = [origin.for_credential()?].into();
        Ok(Self { credential: Arc::new(credential), origins, members: None })
    }

    /// Creates a layer that adds the credential of the pool's member to which the request goes. Returns `None` if
    /// `members` is empty.
    pub(crate) fn of_members(members: &[Self]) -> Option<Self> {
        let Self { credential, origins, .. } = members.first()?.clone();
        Some(Self { credential, origins, members: Some(members.into()) })
    }

    /// Sets where the key is placed on the request. Has no effect if a closure adds the credential.
    pub fn with_placement(mut self, placement: KeyPlacement) -> Self {
        if let Some(keys) = self.credential.keys() {
            self.credential = Arc::new(Credential::key(keys, placement));
        }
        self
    }

    /// Also sends the credential to `origin`, such as another host to which the service redirects.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new).
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        self.origins = self.origins.iter().cloned().chain([origin.for_credential()?]).collect();
        Ok(self)
    }
}

impl fmt::Debug for AuthLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
