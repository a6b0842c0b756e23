use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, request};

use super::{ApiKey, KeyError, KeyPlacement, KeySource, Origin, key::auth_error, placement::PlacedKey};
use crate::{
    call::CallContext,
    config::InvalidConfig,
    error::{BoxError, Error},
};

/// The credential that a layer adds to requests. `G` signs them, or is `Infallible` in a layer that signs none.
#[derive(Clone)]
pub(crate) enum Credential<G> {
    None,
    Key(Arc<KeyCredential>),
    /// A closure that adds the credential to the head of a request.
    Closure(Arc<Authorize>),
    Signature(G),
    /// The credentials of the members of a pool, each with its origin. A request gets the credential of its
    /// member.
    Members(Arc<[(Self, Origin)]>),
}

type Authorize = dyn Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync;

/// A key that a request sends, with its source. A 401 rejects this key.
pub(super) type SentKey = (KeySource, ApiKey);

impl<G> Credential<G> {
    pub(crate) fn key(keys: impl Into<KeySource>, placement: &KeyPlacement) -> Self {
        let (keys, placement) = (keys.into(), placement.clone());
        let fixed = keys.fixed().map(|key| PlacedKey::new(&placement, key));
        Self::Key(Arc::new(KeyCredential { keys, placement, fixed, latest: Mutex::default() }))
    }

    /// Creates the credential of a pool from the keys and the origins of its members.
    pub(crate) fn members(
        members: impl Iterator<Item = (KeySource, Origin)>,
        placement: &KeyPlacement,
    ) -> Result<Self, InvalidConfig> {
        let member = |(keys, origin): (_, Origin)| Ok((Self::key(keys, placement), origin.for_credential()?));
        members.map(member).collect::<Result<_, _>>().map(Self::Members)
    }

    /// Changes the placement, if the credential is a key.
    pub(super) fn with_placement(self, placement: &KeyPlacement) -> Self {
        match self {
            Self::Key(key) => Self::key(key.keys.clone(), placement),
            other => other,
        }
    }

    /// Returns whether the source of the key [has failed](KeySource::has_failed).
    pub(super) fn has_failed(&self) -> bool {
        matches!(self, Self::Key(key) if key.keys.has_failed())
    }
}

/// The keys of a source, in one placement.
pub(crate) struct KeyCredential {
    pub(super) keys: KeySource,
    placement: KeyPlacement,
    /// The formatted key, if it is a fixed value.
    pub(super) fixed: Option<PlacedKey>,
    /// The latest key and its formatted form, so that each key is formatted only once.
    latest: Mutex<Option<(ApiKey, PlacedKey)>>,
}

impl KeyCredential {
    /// Adds the key to the request, unless the request already has a credential there. Returns the added key, unless
    /// the key is fixed and belongs to no pool. `ready` is the key with which the service became ready.
    pub(super) fn put<B>(
        &self,
        request: &mut Request<B>,
        ready: Option<Result<ApiKey, KeyError>>,
        is_member: bool,
    ) -> Result<Option<SentKey>, Error> {
        let formatted;
        let (placed, sent) = match &self.fixed {
            Some(fixed) => {
                let key = self.keys.fixed().filter(|_| is_member);
                (fixed, key.map(|key| (self.keys.clone(), key.clone())))
            }
            None => {
                let key = self.latest(ready).map_err(auth_error)?;
                formatted = self.placed(&key);
                (&formatted, Some((self.keys.clone(), key)))
            }
        };
        if placed.put(request)? {
            // The report then omits a server's request id that contains the key.
            if let Some(call) = request.extensions().get::<CallContext>() {
                call.conceal(&placed.secret, self.fixed.is_none());
            }
            return Ok(sent);
        }
        match is_member {
            // The pool could send the request to the wrong member.
            true => Err(Error::invalid_request(
                "the request already has a credential, but the pool adds the credential of the chosen member",
            )),
            false => Ok(None),
        }
    }

    /// Returns the latest key. If no key is valid, returns the key with which the service became ready, even if this
    /// key has expired since then. A request that has its permit never waits for a key.
    fn latest(&self, ready: Option<Result<ApiKey, KeyError>>) -> Result<ApiKey, KeyError> {
        match (self.keys.lease().ok(), ready) {
            (Some(Ok(key)), _) => Ok(key),
            (_, Some(ready)) => ready,
            (Some(Err(error)), None) => Err(error),
            (None, None) => {
                Err(KeyError::new("no key was fetched, because the service was called before it was ready"))
            }
        }
    }

    fn placed(&self, key: &ApiKey) -> PlacedKey {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some((last, placed)) if last == key => placed.clone(),
            _ => latest.insert((key.clone(), PlacedKey::new(&self.placement, key))).1.clone(),
        }
    }
}
