use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Duration};

use http::request;

use super::StackBuilder;
use crate::{
    auth::{ApiKey, KeyPlacement, KeySource, Origin, Sign},
    error::BoxError,
    stack::credential::Credential,
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
    pub fn with_key_env(mut self, variable: impl Into<Cow<'static, str>>) -> Self {
        self.credential = Credential::Environment(variable.into());
        self
    }

    /// Sends the key in this file. The file is read when the layer or client is made, and by the first request after each
    /// [5 s](KeySource::FILE_INTERVAL): see [`KeySource::from_file`].
    ///
    /// After a 401, reads the file immediately, and retries the request once if the file contains another key.
    pub fn with_key_file(self, path: impl Into<PathBuf>) -> Self {
        self.with_key_file_every(path, KeySource::FILE_INTERVAL)
    }

    /// Like [`with_key_file`](Self::with_key_file), with another interval.
    pub fn with_key_file_every(mut self, path: impl Into<PathBuf>, interval: Duration) -> Self {
        self.credential = Credential::File(path.into(), interval);
        self
    }

    /// Sends the key from this source, for example from a closure that fetches it and replaces it before it expires:
    /// [`RefreshingKey`](crate::auth::RefreshingKey). Clones of the builder share the source.
    ///
    /// Retries a request once after a 401 if the source has another key.
    pub fn with_keys(mut self, keys: impl Into<KeySource>) -> Self {
        self.credential = Credential::Keys(keys.into());
        self
    }

    /// Sends the key in another place than a bearer header, such as the header `x-api-key` or a query parameter.
    ///
    /// Has no effect without a key, such as after [`with_authorize`](Self::with_authorize) or
    /// [`without_credential`](Self::without_credential).
    pub fn with_key_placement(mut self, placement: KeyPlacement) -> Self {
        self.placement = placement;
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

    /// Sends what `authorize` puts on the request, instead of a key: for example a signature made from
    /// [`AppCredentials`](crate::auth::AppCredentials). See [`AuthLayer::from_fn`](crate::auth::AuthLayer::from_fn).
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
