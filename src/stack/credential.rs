use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderName, request};
use tower::util::Either;
use tower_layer::Identity;

use crate::{
    auth::{ApiKey, AuthLayer, KeyPlacement, KeySource, Origin, Sign, SignLayer},
    config::InvalidConfig,
    error::BoxError,
};

pub(super) type CredentialLayer = Either<AuthLayer, Either<SignLayer, Identity>>;

/// The credential of a stack. It is read and checked when a layer is made.
#[derive(Clone)]
pub(super) enum Credential {
    Key { source: CredentialSource, placement: KeyPlacement },
    Own(Arc<Authorize>),
    Signature(Arc<dyn Sign>),
    None,
}

type Authorize = dyn Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync;

#[derive(Clone)]
pub(super) enum CredentialSource {
    Environment(Cow<'static, str>),
    File(PathBuf, Duration),
    KeySource(KeySource),
}

impl Credential {
    pub(super) fn bearer_from_env(variable: &'static str) -> Self {
        let source = CredentialSource::Environment(variable.into());
        Self::Key { source, placement: KeyPlacement::bearer() }
    }

    /// Returns the custom header of the key, if it has one.
    pub(super) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Key { placement, .. } => placement.header_name(),
            _ => None,
        }
    }

    pub(super) fn layer(
        &self,
        origin: &Origin,
        allowed: &[Origin],
    ) -> Result<CredentialLayer, InvalidConfig> {
        let (origin, mut allowed) = (origin.clone(), allowed.iter().cloned());
        let layer = match self {
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
            Self::Key { source, placement } => {
                AuthLayer::new(source.open()?, origin)?.with_placement(placement.clone())
            }
        };
        Ok(Either::Left(allowed.try_fold(layer, AuthLayer::with_allowed_origin)?))
    }
}

impl CredentialSource {
    fn open(&self) -> Result<KeySource, InvalidConfig> {
        const UNSET: &str = "the variable to be set, another key (with_api_key, with_key_env, with_key_file), or without_credential()";
        Ok(match self {
            Self::Environment(variable) => ApiKey::from_env_or(variable, UNSET)?.into(),
            Self::File(path, interval) => KeySource::from_file_every(path, *interval)?,
            Self::KeySource(keys) => keys.clone(),
        })
    }
}
