use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use http::{Request, request};

use super::{ApiKey, KeyError, KeyPlacement, KeySource, key_error::auth_error, placed_key::PlacedKey};
use crate::{
    call::CallContext,
    error::{BoxError, Error},
    headers,
};

/// A closure that adds a credential to the head of a request.
pub(super) struct Hook(Box<Authorize>);

type Authorize = dyn Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync;

/// The credential of a service.
pub(super) enum Credential {
    Fixed(FixedKey),
    Changing(ChangingKey),
    Hook(Hook),
}

pub(super) struct FixedKey {
    key: ApiKey,
    placed: PlacedKey,
}

pub(super) struct ChangingKey {
    pub(super) keys: KeySource,
    placement: KeyPlacement,
    /// The latest key and its formatted form, so that each key is formatted only once.
    placed: Mutex<Option<(ApiKey, PlacedKey)>>,
}

impl Credential {
    pub(super) fn key(keys: KeySource, placement: KeyPlacement) -> Self {
        match keys.fixed() {
            Some(key) => Self::Fixed(FixedKey { key: key.clone(), placed: PlacedKey::new(&placement, key) }),
            None => Self::Changing(ChangingKey { keys, placement, placed: Mutex::default() }),
        }
    }

    /// Returns the source of the key, if the credential is a key.
    pub(super) fn keys(&self) -> Option<KeySource> {
        match self {
            Self::Fixed(fixed) => Some(fixed.key.clone().into()),
            Self::Changing(changing) => Some(changing.keys.clone()),
            Self::Hook(_) => None,
        }
    }
}

/// Records the key in the call, so that the report omits a server's request id that contains the key.
fn conceal<B>(request: &Request<B>, placed: &PlacedKey) {
    if let Some(call) = request.extensions().get::<CallContext>() {
        call.conceal(&placed.secret);
    }
}

impl Hook {
    pub(super) fn new(
        authorize: impl Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(authorize))
    }

    pub(super) fn put(&self, head: &mut request::Parts) -> Result<(), Error> {
        headers::check_room(&head.headers)?;
        (self.0)(head).map_err(auth_error)
    }
}

impl FixedKey {
    /// Adds the key to the request, unless the request already has a key. Returns whether the key was added.
    pub(super) fn put<B>(&self, request: &mut Request<B>) -> Result<bool, Error> {
        let is_added = self.placed.put(request)?;
        if is_added {
            conceal(request, &self.placed);
        }
        Ok(is_added)
    }
}

impl ChangingKey {
    /// Adds the key to the request. Returns the added key and its source, so that a 401 can reject the key. Returns
    /// `None` if the request already had a key.
    pub(super) fn put<B>(
        &self,
        request: &mut Request<B>,
        ready: Option<Result<ApiKey, KeyError>>,
    ) -> Result<Option<(KeySource, ApiKey)>, Error> {
        let key = self.latest(ready).map_err(auth_error)?;
        let placed = self.placed(&key);
        if !placed.put(request)? {
            return Ok(None);
        }
        conceal(request, &placed);
        Ok(Some((self.keys.clone(), key)))
    }

    /// Returns the latest key. If no key is valid, returns the key with which the service became ready, even if this
    /// key has expired since then. A request that has its permit never waits for a key.
    fn latest(&self, ready: Option<Result<ApiKey, KeyError>>) -> Result<ApiKey, KeyError> {
        match (self.keys.lease().now_or_never(), ready) {
            (Some(Ok(key)), _) => Ok(key),
            (_, Some(ready)) => ready,
            (Some(Err(error)), None) => Err(error),
            (None, None) => {
                Err(KeyError::new("no key was fetched, because the service was called before it was ready"))
            }
        }
    }

    fn placed(&self, key: &ApiKey) -> PlacedKey {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*placed {
            Some((last, placed)) if last == key => placed.clone(),
            _ => placed.insert((key.clone(), PlacedKey::new(&self.placement, key))).1.clone(),
        }
    }
}
