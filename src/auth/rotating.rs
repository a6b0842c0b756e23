use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::{HeaderName, request};

use super::{
    ApiKey, Authorize, CurrentKey, HeaderKey, KeySource, QueryKey,
    header::{check_header, check_user},
};
use crate::error::{BoxError, InvalidConfig};

/// Where on a request the key goes.
#[derive(Debug, Clone)]
pub struct Form {
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Bearer,
    Header(HeaderName),
    Basic(Arc<str>),
    Query(Arc<str>),
}

impl Form {
    /// `Authorization: Bearer <key>`.
    pub fn bearer() -> Self {
        Self { place: Place::Bearer }
    }

    /// A header of this name, such as `x-api-key`.
    ///
    /// # Errors
    ///
    /// As [`HeaderKey::new`].
    pub fn header(name: HeaderName) -> Result<Self, InvalidConfig> {
        check_header(&name)?;
        Ok(Self { place: Place::Header(name) })
    }

    /// `Authorization: Basic`, with the key as the password of this user.
    ///
    /// # Errors
    ///
    /// As [`Basic::new`](super::Basic::new).
    pub fn basic(user: &str) -> Result<Self, InvalidConfig> {
        check_user(user)?;
        Ok(Self { place: Place::Basic(user.into()) })
    }

    /// A query parameter of this name.
    ///
    /// # Errors
    ///
    /// As [`QueryKey::new`].
    pub fn query(name: &str) -> Result<Self, InvalidConfig> {
        QueryKey::check(name)?;
        Ok(Self { place: Place::Query(name.into()) })
    }

    fn of(&self, key: &ApiKey) -> Made {
        match &self.place {
            Place::Bearer => Made::Header(HeaderKey::bearer(key)),
            Place::Header(name) => Made::Header(HeaderKey::made(name.clone(), key)),
            Place::Basic(user) => Made::Header(HeaderKey::basic(user, key)),
            Place::Query(name) => Made::Query(QueryKey::made(name, key).into()),
        }
    }
}

/// A key in its form, made once for each key and not for each request.
#[derive(Clone)]
enum Made {
    Header(HeaderKey),
    Query(Arc<QueryKey>),
}

impl Made {
    fn put(&self, head: &mut request::Parts) -> Result<bool, BoxError> {
        match self {
            Self::Header(key) => Ok(key.put(head)?),
            Self::Query(key) => key.put(head),
        }
    }
}

/// A key from any source in any form, and another one as soon as the source has it.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::auth::{AuthLayer, Form, KeySource, Origin, Rotating};
///
/// # fn make() -> Result<(), tower_outbound::InvalidConfig> {
/// let keys = KeySource::from_file("/run/secrets/rates")?;
/// let form = Form::header(HeaderName::from_static("x-api-key"))?;
/// let layer = AuthLayer::with(Rotating::new(form, keys), Origin::parse("https://api.example.com")?)?;
/// # Ok(())
/// # }
/// ```
pub struct Rotating {
    form: Form,
    keys: KeySource,
    fixed: Option<Made>,
    /// The key that was sent last, and its form.
    made: Mutex<Option<(u64, Made)>>,
}

impl Rotating {
    /// Sends the key of `keys` in this form.
    pub fn new(form: Form, keys: impl Into<KeySource>) -> Self {
        let keys = keys.into();
        let fixed = keys.fixed().map(|key| form.of(key.key()));
        Self { form, keys, fixed, made: Mutex::new(None) }
    }

    fn made(&self, key: &CurrentKey) -> Made {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((generation, made)) if *generation == key.generation() => made.clone(),
            _ => {
                let new = self.form.of(key.key());
                *made = Some((key.generation(), new.clone()));
                new
            }
        }
    }
}

impl Authorize for Rotating {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        match &self.fixed {
            Some(made) => made.put(head).map(|_| ()),
            None => Err("a key that changes is put on by authorize_with".into()),
        }
    }

    fn keys(&self) -> Option<&KeySource> {
        Some(&self.keys)
    }

    fn authorize_with(&self, key: &CurrentKey, head: &mut request::Parts) -> Result<bool, BoxError> {
        match &self.fixed {
            Some(made) => made.put(head),
            None => self.made(key).put(head),
        }
    }
}

impl fmt::Debug for Rotating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rotating").field("form", &self.form).field("keys", &self.keys).finish_non_exhaustive()
    }
}
