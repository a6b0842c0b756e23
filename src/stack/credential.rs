use std::{borrow::Cow, fmt, path::PathBuf, sync::Arc, time::Duration};

use http::request;
use tower::util::Either;
use tower_layer::Identity;

use crate::{
    auth::{ApiKey, AuthLayer, KeyPlacement, KeySource, Origin, Sign, SignLayer},
    config::InvalidConfig,
    error::BoxError,
};

pub(super) type CredentialLayer = Either<AuthLayer, Either<SignLayer, Identity>>;

/// The credential of a stack. It is read and checked when a layer is created.
#[derive(Clone)]
pub(super) enum Credential {
    /// The caller has not chosen a credential yet.
    Missing,
    Environment(Cow<'static, str>),
    File(PathBuf, Duration),
    Keys(KeySource),
    Own(Arc<Authorize>),
    Signature(Arc<dyn Sign>),
    None,
}

type Authorize = dyn Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync;

impl Credential {
    /// Returns whether the credential is a key. Only a key has a placement.
    pub(super) fn is_key(&self) -> bool {
        matches!(self, Self::Environment(_) | Self::File(..) | Self::Keys(_))
    }

    /// Returns an error that names the setting of the origin if a credential must not be sent there.
    pub(super) fn check_origins(&self, base: &Origin, allowed: &[Origin]) -> Result<(), InvalidConfig> {
        const BASE: &str =
            "https, a loopback host or allow_plaintext = true, because a credential is sent to it";
        if matches!(self, Self::Missing | Self::None) {
            return Ok(());
        }
        let in_base = |error: InvalidConfig| error.at("base_url").expecting_in_file(BASE);
        base.clone().for_credential().map_err(in_base)?;
        let in_allowed = |error: InvalidConfig| error.at("allowed_origins");
        allowed.iter().try_for_each(|origin| origin.clone().for_credential().map(drop).map_err(in_allowed))
    }

    pub(super) fn layer(
        &self,
        placement: &KeyPlacement,
        origin: &Origin,
        allowed: &[Origin],
    ) -> Result<CredentialLayer, InvalidConfig> {
        const MISSING: &str = "a key (with_api_key_env, with_api_key, with_api_key_file), a signature (with_signature), or without_credential()";
        const UNSET: &str = "the environment variable to be set, another key (with_api_key, with_api_key_env, with_api_key_file), or without_credential()";
        const MISSING_IN_FILE: &str = "a key (api_key, api_key_env or api_key_file), or no_credential = true";
        const UNSET_IN_FILE: &str = "the environment variable to be set, another key (api_key or api_key_file), or no_credential = true";
        let (origin, mut allowed) = (origin.clone(), allowed.iter().cloned());
        let layer = match self {
            Self::Missing => {
                let error = InvalidConfig::new("credential", "none", MISSING).at("api_key_env");
                return Err(error.expecting_in_file(MISSING_IN_FILE));
            }
            Self::None => return Ok(Either::Right(Either::Right(Identity::new()))),
            Self::Signature(sign) => {
                let layer = SignLayer::new(Arc::clone(sign), origin)?;
                let layer = allowed.try_fold(layer, SignLayer::with_allowed_origin)?;
                return Ok(Either::Right(Either::Left(layer)));
            }
            Self::Own(authorize) => {
                let authorize = Arc::clone(authorize);
                AuthLayer::from_fn(move |head| authorize(head), origin)?
            }
            Self::Environment(variable) => {
                let key = ApiKey::from_env_or(variable, UNSET, UNSET_IN_FILE);
                AuthLayer::new(key.map_err(|error| error.at("api_key_env"))?, origin)?
            }
            Self::File(path, interval) => {
                let keys = KeySource::from_file_every(path, *interval);
                AuthLayer::new(keys.map_err(|error| error.at("api_key_file"))?, origin)?
            }
            Self::Keys(keys) => AuthLayer::new(keys.clone(), origin)?,
        };
        let layer = layer.with_placement(placement.clone());
        Ok(Either::Left(allowed.try_fold(layer, AuthLayer::with_allowed_origin)?))
    }
}

/// Writes no part of the credential, because it may be a key.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(redacted)")
    }
}
