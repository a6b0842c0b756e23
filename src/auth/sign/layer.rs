use std::{fmt, sync::Arc};

use tower_layer::Layer;

use super::{Sign, SignService};
use crate::{auth::Origin, config::InvalidConfig};

/// Signs every request to its own origin.
///
/// The inner service takes the same body type. The layer buffers a body for its signature in memory, so the type must
/// implement `From<Bytes>`: [`Body`](crate::Body), `Full<Bytes>`, or [`ReplayBody`](crate::body::ReplayBody) under a retry
/// layer. It drops the trailers of such a body.
///
/// The layer goes where [`AuthLayer`](crate::auth::AuthLayer) goes. It signs after the limiter's grant, so the safety margin
/// of a quota should cover the time that a signature takes.
///
/// # Clone
///
/// Clones, and the services that they make, share the signer.
#[derive(Clone)]
pub struct SignLayer {
    sign: Arc<dyn Sign>,
    origins: Vec<Origin>,
}

impl SignLayer {
    /// Signs requests to `origin` with `sign`. Requests to any other origin pass without a signature.
    ///
    /// # Errors
    ///
    /// Returns an error if the origin has neither TLS nor a loopback host, unless it
    /// [allows plaintext](Origin::allow_plaintext).
    pub fn new(sign: impl Sign + 'static, origin: Origin) -> Result<Self, InvalidConfig> {
        Ok(Self { sign: Arc::new(sign), origins: vec![origin.for_credential()?] })
    }

    /// Also signs requests to `origin`.
    ///
    /// # Errors
    ///
    /// Returns an error as [`new`](Self::new) does.
    pub fn with_allowed_origin(mut self, origin: Origin) -> Result<Self, InvalidConfig> {
        self.origins.push(origin.for_credential()?);
        Ok(self)
    }
}

impl<S> Layer<S> for SignLayer {
    type Service = SignService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SignService::new(inner, Arc::clone(&self.sign), self.origins.as_slice().into())
    }
}

impl fmt::Debug for SignLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignLayer").field("origins", &self.origins).finish_non_exhaustive()
    }
}
