use std::{fmt, sync::Arc};

use tower_layer::Layer;

use super::{ApiKey, Auth, Authorize, Bearer, Origin};
use crate::error::InvalidConfig;

/// Puts a credential on every request to its own origin.
///
/// # Clone
///
/// Clones, and the services that they make, share the credential.
pub struct AuthLayer<A> {
    authorize: Arc<A>,
    origins: Arc<[Origin]>,
}

/// [`AuthLayer`] with a key in `Authorization: Bearer`.
pub type BearerAuthLayer = AuthLayer<Bearer>;

impl BearerAuthLayer {
    /// The key goes to `origin`, as a bearer header, and nowhere else.
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with).
    pub fn new(key: ApiKey, origin: Origin) -> Result<Self, InvalidConfig> {
        Self::with(Bearer::from(key), origin)
    }
}

impl<A: Authorize> AuthLayer<A> {
    /// What `authorize` puts on a request goes to `origin` and nowhere else.
    ///
    /// # Errors
    ///
    /// When the origin has no TLS and is not loopback, and [`Origin::allow_plaintext`] was not said.
    pub fn with(authorize: A, origin: Origin) -> Result<Self, InvalidConfig> {
        check(&origin)?;
        Ok(Self { authorize: Arc::new(authorize), origins: Arc::new([origin]) })
    }
}

impl<A> AuthLayer<A> {
    /// Lets the credential go to `origin`, too: another host of the same service, one that it redirects to.
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with).
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        check(&origin)?;
        self.origins = self.origins.iter().cloned().chain([origin]).collect();
        Ok(self)
    }
}

pub(super) fn check(origin: &Origin) -> Result<(), InvalidConfig> {
    if !origin.is_safe() {
        return Err(InvalidConfig::new(
            "origin",
            origin.to_string(),
            "https, or loopback, or Origin::allow_plaintext, for a key to be sent there",
        ));
    }
    Ok(())
}

impl<A> Clone for AuthLayer<A> {
    fn clone(&self) -> Self {
        Self { authorize: Arc::clone(&self.authorize), origins: Arc::clone(&self.origins) }
    }
}

impl<S, A> Layer<S> for AuthLayer<A> {
    type Service = Auth<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Auth::new(inner, Arc::clone(&self.authorize), Arc::clone(&self.origins))
    }
}

impl<A> fmt::Debug for AuthLayer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
