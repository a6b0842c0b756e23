use std::{fmt, sync::Arc};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor};

use crate::config::InvalidConfig;

/// The certificates and the key that are given in code.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Certificates {
    pub(super) roots: Vec<TrustAnchor<'static>>,
    pub(super) identity: Option<Arc<Identity>>,
    /// The first error that a setter found.
    pub(super) invalid: Option<InvalidConfig>,
}

/// A client certificate with its intermediates and its private key.
#[derive(PartialEq)]
pub(super) struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
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
