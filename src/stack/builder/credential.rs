use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Duration};

use http::request;

use super::StackBuilder;
use crate::{
    auth::{ApiKey, KeyPlacement, KeySource, Origin, Sign},
    error::BoxError,
    stack::credential::Credential,
};

/// Setters of the credential: a key, a signature, or no credential.
impl StackBuilder {
    /// Sends this key.
    ///
    /// The limiter is kept. If a clone of this builder uses another key, give it its own quota, because a quota belongs
    /// to a key.
    pub fn with_api_key(self, key: ApiKey) -> Self {
        self.with_keys(key)
    }

    /// Sends the key in this environment variable. The variable is read once, when the layer or client is created.
    pub fn with_key_env(mut self, variable: impl Into<Cow<'static, str>>) -> Self {
        self.credential = Credential::Environment(variable.into());
        self
    }

    /// Sends the key in this file. The file is read when the layer or client is created, and again by the first request
    /// after each interval of [5 s](KeySource::FILE_INTERVAL): see [`KeySource::from_file`].
    ///
    /// After a 401, the file is read immediately. If it contains another key, the request is retried once.
    pub fn with_key_file(self, path: impl Into<PathBuf>) -> Self {
        self.with_key_file_every(path, KeySource::FILE_INTERVAL)
    }

    /// Like [`with_key_file`](Self::with_key_file), with a custom interval.
    pub fn with_key_file_every(mut self, path: impl Into<PathBuf>, interval: Duration) -> Self {
        self.credential = Credential::File(path.into(), interval);
        self
    }

    /// Sends the key from this source, such as a [`RefreshingKey`](crate::auth::RefreshingKey), whose closure fetches
    /// the key and replaces it before it expires. Clones of the builder share the source.
    ///
    /// After a 401, the request is retried once if the source has another key.
    pub fn with_keys(mut self, keys: impl Into<KeySource>) -> Self {
        self.credential = Credential::Keys(keys.into());
        self
    }

    /// Sets where requests carry the key. The default is a bearer token. Other places are a header such as `x-api-key`,
    /// or a query parameter.
    ///
    /// Has no effect if no key is sent, for example after [`with_authorize`](Self::with_authorize) or
    /// [`without_credential`](Self::without_credential).
    pub fn with_key_placement(mut self, placement: KeyPlacement) -> Self {
        self.placement = placement;
        self
    }

    /// Signs every attempt instead of sending a key. A [`Sign`] reads the head of the request and, if it sets a limit,
    /// also the body. It may be asynchronous.
    pub fn with_signature(mut self, sign: impl Sign + 'static) -> Self {
        self.credential = Credential::Signature(Arc::new(sign));
        self
    }

    /// Also sends the credential to this origin. Use it with a layer above the stack that follows redirects.
    ///
    /// A ready client still rejects URLs outside its base URL.
    pub fn with_allowed_origin(mut self, origin: Origin) -> Self {
        self.allowed.push(origin);
        self
    }

    /// Adds a credential to each request with the closure `authorize`, instead of sending a key. An example is a
    /// signature made from [`AppCredentials`](crate::auth::AppCredentials). See
    /// [`AuthLayer::from_fn`](crate::auth::AuthLayer::from_fn).
    pub fn with_authorize(
        mut self,
        authorize: impl Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.credential = Credential::Own(Arc::new(authorize));
        self
    }

    /// Sends no credential. Use it for a service that needs none.
    ///
    /// No key is read, so its environment variable need not be set. The base URL may be without TLS.
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
