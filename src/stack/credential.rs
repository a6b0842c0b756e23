use std::{borrow::Cow, path::PathBuf, time::Duration};

use http::HeaderName;
use tower::util::Either;
use tower_layer::Identity;

use crate::{
    auth::{
        AnyAuthorize, AnySign, ApiKey, AuthLayer, KeyFile, KeyPlacement, KeySource, Origin, Rotating,
        SignLayer,
    },
    error::InvalidConfig,
};

pub(super) type CredentialLayer = Either<AuthLayer<AnyAuthorize>, Either<SignLayer<AnySign>, Identity>>;

/// The credential of a stack. It is read and checked when a layer is made.
#[derive(Clone)]
pub(super) enum Credential {
    Key { source: CredentialSource, placement: KeyPlacement },
    Own(AnyAuthorize),
    Signature(AnySign),
    None,
}

#[derive(Clone)]
pub(super) enum CredentialSource {
    Environment(Cow<'static, str>),
    File(PathBuf, Duration),
    KeySource(KeySource),
}

impl Credential {
    pub(super) fn bearer_from_env(variable: &'static str) -> Self {
        Self::Key { source: CredentialSource::Environment(variable.into()), placement: KeyPlacement::Bearer }
    }

    /// Returns the custom header of the key, if it has one.
    pub(super) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Key { placement: KeyPlacement::Header(name), .. } => Some(name),
            _ => None,
        }
    }

    /// Makes the layer. Also returns the key source if the credential is a key.
    pub(super) fn layer(
        &self,
        origin: &Origin,
        allowed: &[Origin],
    ) -> Result<(CredentialLayer, Option<KeySource>), InvalidConfig> {
        let (origin, mut allowed) = (origin.clone(), allowed.iter().cloned());
        let mut keys = None;
        let authorize = match self {
            Self::None => return Ok((Either::Right(Either::Right(Identity::new())), None)),
            Self::Signature(sign) => {
                let layer = SignLayer::new(sign.clone(), origin)?;
                let layer = allowed.try_fold(layer, SignLayer::with_allowed_origin)?;
                return Ok((Either::Right(Either::Left(layer)), None));
            }
            Self::Own(authorize) => authorize.clone(),
            Self::Key { source, placement } => {
                AnyAuthorize::new(Rotating::new(placement.form()?, keys.insert(source.open()?).clone()))
            }
        };
        let layer = AuthLayer::with(authorize, origin)?;
        Ok((Either::Left(allowed.try_fold(layer, AuthLayer::with_allowed_origin)?), keys))
    }
}

impl CredentialSource {
    fn open(&self) -> Result<KeySource, InvalidConfig> {
        const UNSET: &str = "the variable to be set, another key (with_api_key, with_key_env, with_key_file), or without_credential()";
        Ok(match self {
            Self::Environment(variable) => ApiKey::from_env_or(variable, UNSET)?.into(),
            Self::File(path, interval) => KeyFile::open(path)?.with_interval(*interval).into(),
            Self::KeySource(keys) => keys.clone(),
        })
    }
}
