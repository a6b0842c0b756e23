//! TLS for the test server, and a transport that trusts its certificate.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};
use tower_outbound::client::Transport;

use super::server::Wire;

/// Creates a self-signed certificate for `localhost` and 127.0.0.1.
pub(crate) fn certificate() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// Serves TLS with this certificate. ALPN offers `protocols`; an empty list disables it.
pub(crate) fn wire(certificate: &CertifiedKey<KeyPair>, protocols: &[&str]) -> Wire {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der()));
    // The default provider is ambiguous if another crate of the build enables a second one.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Wire::Tls(TlsAcceptor::from(Arc::new(config)))
}

/// Creates a transport that trusts this certificate only.
pub(crate) fn trusting(certificate: &CertifiedKey<KeyPair>) -> Transport {
    Transport::new()
        .without_bundled_roots()
        .with_root_certificates(certificate.cert.pem().as_bytes())
        .unwrap()
}
