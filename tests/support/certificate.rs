//! TLS for the test server, and a transport that trusts the server's certificate.

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
use tower_outbound::transport::TransportConfig;

use super::server::Wire;

/// Creates a self-signed certificate for `localhost` and 127.0.0.1.
pub(crate) fn certificate() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// Serves TLS with `certificate`. ALPN offers `protocols`. An empty list disables ALPN.
pub(crate) fn wire(certificate: &CertifiedKey<KeyPair>, protocols: &[&str]) -> Wire {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der()));
    // The default crypto provider is ambiguous if another crate of the build enables a second provider.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Wire::Tls(TlsAcceptor::from(Arc::new(config)))
}

/// Creates a transport that trusts only `certificate`.
pub(crate) fn trusting(certificate: &CertifiedKey<KeyPair>) -> TransportConfig {
    TransportConfig::new().without_bundled_roots().with_root_certificates(certificate.cert.pem().as_bytes())
}
