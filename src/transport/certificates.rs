use std::{fmt, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer},
};

use crate::config::InvalidConfig;

/// The certificates and the key that are given in code.
#[derive(Clone)]
pub(super) struct Certificates {
    pub(super) roots: RootCertStore,
    pub(super) identity: Option<Arc<Identity>>,
    /// The first error that a setter found.
    pub(super) invalid: Option<InvalidConfig>,
}

impl PartialEq for Certificates {
    fn eq(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots && self.identity == other.identity
    }
}

/// A client certificate with its intermediates and its private key.
#[derive(PartialEq)]
pub(super) struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Default for Certificates {
    fn default() -> Self {
        Self { roots: RootCertStore::empty(), identity: None, invalid: None }
    }
}

/// Shows no certificate and no key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.len())
            .field("has_client_certificate", &self.identity.is_some())
            .finish()
    }
}
