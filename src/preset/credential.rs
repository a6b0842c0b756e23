use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderName, request};
use tower::util::Either;

use super::{Preset, stack::CredentialLayer};
use crate::{
    auth::{
        ApiKey, AppCredentials, AuthLayer, Authorize, Form, KeyFile, KeyProvider, Keys, Origin, ProvidedKey,
        Rotating, Sign, SignLayer,
    },
    error::{BoxError, InvalidConfig},
};

/// What the requests of a preset are let in by. Nothing is read or checked before a layer is made.
#[derive(Clone)]
pub(super) enum Credential {
    Key { source: KeySource, form: KeyForm },
    Own(Arc<dyn Authorize>),
    Signature(Arc<dyn Sign>),
}

#[derive(Clone)]
pub(super) enum KeySource {
    Environment(Cow<'static, str>),
    File(PathBuf, Duration),
    Keys(Keys),
}

/// A [`Form`] that is not checked yet.
#[derive(Clone)]
pub(super) enum KeyForm {
    Bearer,
    Header(HeaderName),
    Basic(Cow<'static, str>),
    Query(Cow<'static, str>),
}

impl Credential {
    pub(super) fn bearer_from_env(variable: &'static str) -> Self {
        Self::Key { source: KeySource::Environment(variable.into()), form: KeyForm::Bearer }
    }

    /// And the keys that it sends, where it is a key that it sends.
    pub(super) fn layer(
        &self,
        origin: &Origin,
        allowed: &[Origin],
    ) -> Result<(CredentialLayer, Option<Keys>), InvalidConfig> {
        let (origin, mut allowed) = (origin.clone(), allowed.iter().cloned());
        let mut keys = None;
        let authorize: Arc<dyn Authorize> = match self {
            Self::Signature(sign) => {
                let layer = SignLayer::new(Arc::clone(sign), origin)?;
                let layer = allowed.try_fold(layer, SignLayer::with_allowed_origin)?;
                return Ok((Either::Right(layer), None));
            }
            Self::Own(authorize) => Arc::clone(authorize),
            Self::Key { source, form } => {
                Arc::new(Rotating::new(form.checked()?, keys.insert(source.open()?).clone()))
            }
        };
        let layer = AuthLayer::with(authorize, origin)?;
        Ok((Either::Left(allowed.try_fold(layer, AuthLayer::with_allowed_origin)?), keys))
    }
}

impl KeySource {
    fn open(&self) -> Result<Keys, InvalidConfig> {
        Ok(match self {
            Self::Environment(variable) => ApiKey::from_env(variable)?.into(),
            Self::File(path, interval) => KeyFile::open(path)?.with_interval(*interval).into(),
            Self::Keys(keys) => keys.clone(),
        })
    }
}

impl KeyForm {
    fn checked(&self) -> Result<Form, InvalidConfig> {
        match self {
            Self::Bearer => Ok(Form::bearer()),
            Self::Header(name) => Form::header(name.clone()),
            Self::Basic(user) => Form::basic(user),
            Self::Query(name) => Form::query(name),
        }
    }
}

/// Which key or signature, and where on a request it goes.
impl Preset {
    /// Sends this key. The limiter stays: a clone for another key wants a quota of its own, too.
    pub fn with_api_key(self, key: ApiKey) -> Self {
        self.with_keys(key)
    }

    /// Sends the key in this environment variable, read once, when the layer or client is made.
    pub fn with_key_env(self, variable: impl Into<Cow<'static, str>>) -> Self {
        self.with_key(KeySource::Environment(variable.into()))
    }

    /// Sends the key in this file, read when the layer or client is made, and again when the file changes: see
    /// [`KeyFile`](crate::auth::KeyFile).
    /// A request that the server refuses with a 401 is sent once more when the file holds another key.
    pub fn with_key_file(self, path: impl Into<PathBuf>) -> Self {
        self.with_key_file_every(path, KeyFile::DEFAULT_INTERVAL)
    }

    /// Like [`with_key_file`](Self::with_key_file), and looks at the file no more often than this.
    pub fn with_key_file_every(self, path: impl Into<PathBuf>, interval: Duration) -> Self {
        self.with_key(KeySource::File(path.into(), interval))
    }

    /// Sends the key that this provider gives, and asks it again before the key expires: see [`ProvidedKey`], which
    /// [`with_keys`](Self::with_keys) takes with settings of your own. A request that the server refuses with a 401 is
    /// sent once more, with the key that the provider then gives.
    pub fn with_key_provider(self, provider: impl KeyProvider + 'static) -> Self {
        self.with_keys(ProvidedKey::new(provider))
    }

    /// Sends the key from this source, which all clones share.
    pub fn with_keys(self, keys: impl Into<Keys>) -> Self {
        self.with_key(KeySource::Keys(keys.into()))
    }

    fn with_key(mut self, source: KeySource) -> Self {
        let form = match self.credential {
            Credential::Key { form, .. } => form,
            _ => KeyForm::Bearer,
        };
        self.credential = Credential::Key { source, form };
        self
    }

    /// Sends the key in the query parameter of this name and not as a bearer header. Changes nothing once
    /// [`with_authorize`](Self::with_authorize) or [`with_credentials`](Self::with_credentials) was said: what
    /// they send is no key.
    pub fn with_key_in_query(self, parameter: impl Into<Cow<'static, str>>) -> Self {
        self.with_form(KeyForm::Query(parameter.into()))
    }

    /// Sends the key in the header of this name, such as `x-api-key`, and not as a bearer header; as
    /// [`with_key_in_query`](Self::with_key_in_query) otherwise.
    pub fn with_key_in_header(self, name: HeaderName) -> Self {
        self.with_form(KeyForm::Header(name))
    }

    /// Sends the key as the password of this user, and not as a bearer header; as
    /// [`with_key_in_query`](Self::with_key_in_query) otherwise.
    pub fn with_key_as_password(self, user: impl Into<Cow<'static, str>>) -> Self {
        self.with_form(KeyForm::Basic(user.into()))
    }

    fn with_form(mut self, new: KeyForm) -> Self {
        if let Credential::Key { form, .. } = &mut self.credential {
            *form = new;
        }
        self
    }

    /// Signs every attempt, in place of a key: [`Sign`] sees the request's head and, when it asks for it, the body, and
    /// may await something.
    pub fn with_signature(mut self, sign: impl Sign + 'static) -> Self {
        self.credential = Credential::Signature(Arc::new(sign));
        self
    }

    /// Lets the credential go to this origin, too, when a request goes there: through a layer that follows redirects.
    pub fn with_allowed_origin(mut self, origin: Origin) -> Self {
        self.allowed.push(origin);
        self
    }

    /// Sends what `authorize` makes of these three: headers, or a signature over the request's head.
    pub fn with_credentials(
        self,
        credentials: AppCredentials,
        authorize: impl Fn(&AppCredentials, &mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.with_authorize(move |head: &mut request::Parts| authorize(&credentials, head))
    }

    /// Sends whatever `authorize` puts on the request, in place of a key.
    pub fn with_authorize(mut self, authorize: impl Authorize + 'static) -> Self {
        self.credential = Credential::Own(Arc::new(authorize));
        self
    }
}
