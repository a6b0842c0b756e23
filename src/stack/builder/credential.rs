use std::{borrow::Cow, fmt, path::PathBuf, sync::Arc};

use http::request;

use super::StackBuilder;
use crate::{
    auth::{AnySign, ApiKey, Credential, KeyPlacement, KeySource, Origin, Sign},
    config::InvalidConfig,
    error::BoxError,
};

/// The credential of a stack, or where its key is. A key is read when a layer is created.
#[derive(Clone, Default)]
pub(super) enum CredentialSource {
    /// No setter of a credential was called.
    #[default]
    Missing,
    /// An environment variable.
    Env(Cow<'static, str>),
    File(PathBuf),
    Keys(KeySource),
    /// A closure, a signature, or no credential.
    Other(Credential<AnySign>),
}

impl CredentialSource {
    pub(super) fn create(&self, placement: &KeyPlacement) -> Result<Credential<AnySign>, InvalidConfig> {
        const MISSING: &str = "a key (with_api_key_env, with_api_key, with_api_key_file), a signature (with_signature), or without_credential()";
        const MISSING_IN_FILE: &str = "a key (api_key, api_key_env or api_key_file), or no_credential = true";
        const UNSET: &str = "the environment variable to be set, another key (with_api_key, with_api_key_env, with_api_key_file), or without_credential()";
        const UNSET_IN_FILE: &str = "the environment variable to be set, another key (api_key or api_key_file), or no_credential = true";
        let keys = match self {
            Self::Missing => {
                let error = InvalidConfig::new("credential", "none", MISSING).at("api_key_env");
                return Err(error.expecting_in_file(MISSING_IN_FILE));
            }
            Self::Env(variable) => {
                let key = ApiKey::from_env_or(variable, UNSET, UNSET_IN_FILE);
                key.map_err(|error| error.at("api_key_env"))?.into()
            }
            Self::File(path) => KeySource::from_file(path).map_err(|error| error.at("api_key_file"))?,
            Self::Keys(keys) => keys.clone(),
            Self::Other(credential) => return Ok(credential.clone()),
        };
        Ok(Credential::key(keys, placement))
    }
}

/// Writes no part of the credential, because it may be a key.
impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(redacted)")
    }
}

/// Setters of the credential: a key, a signature, or no credential.
///
/// A setter that replaces the credential also gives the builder a new limiter with the same quotas, because a quota
/// belongs to a key. A limiter that [`with_limiter`](Self::with_limiter) has set is kept.
impl StackBuilder {
    /// Sends this key.
    pub fn with_api_key(self, key: ApiKey) -> Self {
        self.with_keys(key)
    }

    /// Sends the key that this environment variable contains. The variable is read once, when the layer or client is
    /// created.
    pub fn with_api_key_env(self, variable: impl Into<Cow<'static, str>>) -> Self {
        self.with_credential(CredentialSource::Env(variable.into()))
    }

    /// Sends the key that this file contains. The file is read when the layer or client is created, and again by the
    /// first request after each interval of [5 s](KeySource::FILE_INTERVAL): see [`KeySource::from_file`].
    ///
    /// After a 401, the file is read immediately. If it contains another key, the request is retried once.
    pub fn with_api_key_file(self, path: impl Into<PathBuf>) -> Self {
        self.with_credential(CredentialSource::File(path.into()))
    }

    /// Sends the key from this source. An example is a [`RefreshingKey`](crate::auth::RefreshingKey), which fetches the
    /// key with a closure and replaces it before it expires. Clones of the builder share the source.
    ///
    /// After a 401, the request is retried once if the source has another key.
    pub fn with_keys(self, keys: impl Into<KeySource>) -> Self {
        self.with_credential(CredentialSource::Keys(keys.into()))
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

    /// Signs every attempt instead of sending a key. A [`Sign`] reads the head of the request, and also the body if it
    /// sets a [`body_limit`](Sign::body_limit). It may be asynchronous.
    pub fn with_signature(self, sign: impl Sign + 'static) -> Self {
        self.with_credential(CredentialSource::Other(Credential::Signature(AnySign::new(sign))))
    }

    /// Also sends the credential to this origin. Use this method if a layer above the stack follows redirects.
    ///
    /// A client still rejects URLs outside its base URL.
    pub fn with_allowed_origin(mut self, origin: Origin) -> Self {
        self.allowed.push(origin);
        self
    }

    /// Calls the closure `authorize` before each attempt instead of sending a key. The closure adds the credential, for
    /// example a signature made from [`AppCredentials`](crate::auth::AppCredentials). See
    /// [`AuthLayer::from_fn`](crate::auth::AuthLayer::from_fn).
    pub fn with_authorize(
        self,
        authorize: impl Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.with_credential(CredentialSource::Other(Credential::Closure(Arc::new(authorize))))
    }

    /// Sends no credential. Use this method for a service that needs no credential.
    ///
    /// No key is read, so the environment variable of a key need not be set. The base URL may be an `http` URL, without
    /// TLS.
    ///
    /// ```
    /// use tower_outbound::stack::StackBuilder;
    ///
    /// let weather = StackBuilder::new("http://weather.example.com")?.with_name("weather").without_credential().client()?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn without_credential(self) -> Self {
        self.with_credential(CredentialSource::Other(Credential::None))
    }

    fn with_credential(mut self, credential: CredentialSource) -> Self {
        self.credential = credential;
        if !self.has_given_limiter {
            self.renew_limiter();
        }
        self
    }
}
