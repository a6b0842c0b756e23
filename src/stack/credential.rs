use std::{borrow::Cow, fmt, path::PathBuf};

use crate::{
    auth::{AnySign, ApiKey, Credential, KeyPlacement, KeySource},
    config::InvalidConfig,
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
