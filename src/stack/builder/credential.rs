use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Duration};

use http::request;

use super::StackBuilder;
use crate::{
    auth::{ApiKey, AppCredentials, FreshKey, KeyPlacement, KeySource, Origin, RefreshingKey, Sign},
    error::BoxError,
    stack::credential::{Credential, CredentialSource},
};

/// The credential: a key, a signature, or none.
impl StackBuilder {
    /// Sends this key.
    ///
    /// Keeps the limiter. Give a clone with another key its own quota, because a quota belongs to a key.
    pub fn with_api_key(self, key: ApiKey) -> Self {
        self.with_keys(key)
    }

    /// Sends the key in this environment variable. It is read once, when the layer or client is made.
    pub fn with_key_env(self, variable: impl Into<Cow<'static, str>>) -> Self {
        self.with_key(CredentialSource::Environment(variable.into()))
    }

    /// Sends the key in this file. The file is read when the layer or client is made, and again when it changes: see
    /// [`KeySource::from_file`].
    ///
    /// Retries a request once after a 401 if the file contains another key.
    pub fn with_key_file(self, path: impl Into<PathBuf>) -> Self {
        self.with_key_file_every(path, KeySource::FILE_INTERVAL)
    }

    /// Like [`with_key_file`](Self::with_key_file), but checks the file for changes at most once in `interval`.
    pub fn with_key_file_every(self, path: impl Into<PathBuf>, interval: Duration) -> Self {
        self.with_key(CredentialSource::File(path.into(), interval))
    }

    /// Sends the key that this closure fetches. The layer calls it again before the key expires: see
    /// [`RefreshingKey`], which [`with_keys`](Self::with_keys) takes with custom settings.
    ///
    /// Retries a request once after a 401, with the next key.
    pub fn with_key_provider<F, Fut, E>(self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<FreshKey, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.with_keys(RefreshingKey::new(provider))
    }

    /// Sends the key from this key source. All clones share the source.
    pub fn with_keys(self, keys: impl Into<KeySource>) -> Self {
        self.with_key(CredentialSource::KeySource(keys.into()))
    }

    fn with_key(mut self, source: CredentialSource) -> Self {
        let placement = match self.credential {
            Credential::Key { placement, .. } => placement,
            _ => KeyPlacement::bearer(),
        };
        self.credential = Credential::Key { source, placement };
        self
    }

    /// Sends the key in another place than a bearer header, such as the header `x-api-key` or a query parameter.
    ///
    /// Has no effect without a key, such as after [`with_authorize`](Self::with_authorize) or
    /// [`without_credential`](Self::without_credential).
    pub fn with_key_placement(mut self, new: KeyPlacement) -> Self {
        if let Credential::Key { placement, .. } = &mut self.credential {
            *placement = new;
        }
        self
    }

    /// Signs every attempt instead of sending a key. [`Sign`] reads the request's head and, if it sets a limit, its
    /// body, and may await.
    pub fn with_signature(mut self, sign: impl Sign + 'static) -> Self {
        self.credential = Credential::Signature(Arc::new(sign));
        self
    }

    /// Also sends the credential to this origin, for a layer above that follows redirects.
    ///
    /// A ready client still rejects a URL outside of its base URL.
    pub fn with_allowed_origin(mut self, origin: Origin) -> Self {
        self.allowed.push(origin);
        self
    }

    /// Sends the headers or the signature that `authorize` makes from an application's credentials.
    pub fn with_credentials(
        self,
        credentials: AppCredentials,
        authorize: impl Fn(&AppCredentials, &mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.with_authorize(move |head: &mut request::Parts| authorize(&credentials, head))
    }

    /// Sends what `authorize` puts on the request, instead of a key: see
    /// [`AuthLayer::from_fn`](crate::auth::AuthLayer::from_fn).
    pub fn with_authorize(
        mut self,
        authorize: impl Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.credential = Credential::Own(Arc::new(authorize));
        self
    }

    /// Sends no credential, for a service that needs none.
    ///
    /// Reads no key, so no environment variable has to be set. Accepts a base URL without TLS.
    ///
    /// ```
    /// use tower_outbound::stack::StackBuilder;
    ///
    /// let weather = StackBuilder::new("http://weather.example.com")?.with_name("weather").without_credential().client()?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn without_credential(mut self) -> Self {
        self.credential = Credential::None;
        self
    }
}
