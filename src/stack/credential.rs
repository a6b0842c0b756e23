use std::{fmt, sync::Arc};

use crate::{
    auth::{AnySign, Credential, KeyPlacement},
    config::InvalidConfig,
};

/// Creates the credential of a stack. A key is read when a layer is created. `None` until a setter is called.
#[derive(Clone, Default)]
pub(super) struct CredentialSource(pub(super) Option<Arc<Create>>);

type Create = dyn Fn(&KeyPlacement) -> Result<Credential<AnySign>, InvalidConfig> + Send + Sync;

impl CredentialSource {
    /// Returns whether a setter of a credential was called.
    pub(super) fn is_chosen(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn create(&self, placement: &KeyPlacement) -> Result<Credential<AnySign>, InvalidConfig> {
        const MISSING: &str = "a key (with_api_key_env, with_api_key, with_api_key_file), a signature (with_signature), or without_credential()";
        const MISSING_IN_FILE: &str = "a key (api_key, api_key_env or api_key_file), or no_credential = true";
        let missing = || {
            let error = InvalidConfig::new("credential", "none", MISSING).at("api_key_env");
            Err(error.expecting_in_file(MISSING_IN_FILE))
        };
        self.0.as_ref().map_or_else(missing, |create| create(placement))
    }
}

/// Writes no part of the credential, because it may be a key.
impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(redacted)")
    }
}
