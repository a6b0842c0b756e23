//! Tests certificates of clients, against a rustls server that requires one.

use rcgen::{CertifiedKey, KeyPair};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
        server::WebPkiClientVerifier,
        version::{TLS12, TLS13},
    },
};

use super::{
    support::{
        certificate::{certificate, trusting},
        server::Wire,
    },
    *,
};

/// Serves TLS to clients that present `trusted`.
pub(crate) fn mutual(
    certificate: &CertifiedKey<KeyPair>,
    trusted: &CertifiedKey<KeyPair>,
    version: &'static SupportedProtocolVersion,
    protocol: &str,
) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

fn presenting(transport: TransportConfig, identity: &CertifiedKey<KeyPair>) -> TransportConfig {
    let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
    transport.with_client_certificate(certificate.as_bytes(), key.as_bytes())
}

#[tokio::test]
async fn client_certificate_is_accepted_by_a_server_that_requires_one() {
    let (server_side, client_side) = (certificate(), certificate());
    for version in [&TLS12, &TLS13] {
        for protocol in ["h2", "http/1.1"] {
            let acceptor = mutual(&server_side, &client_side, version, protocol);
            let server = Server::quick(Wire::Tls(acceptor)).await;
            let client = client(&server.url(), presenting(trusting(&server_side), &client_side));
            assert_eq!(within(text(client.post("/").body("{}"))).await, "ok", "{version:?} {protocol}");
            assert_eq!(server.requests(), 1);
        }
    }
}

/// In TLS 1.2, the server's alert is part of the handshake.
#[tokio::test]
async fn does_not_retry_after_the_server_rejects_the_client_certificate() {
    let (server_side, client_side, other) = (certificate(), certificate(), certificate());
    for protocol in ["h2", "http/1.1"] {
        let server = Server::quick(Wire::Tls(mutual(&server_side, &client_side, &TLS12, protocol))).await;
        for transport in [trusting(&server_side), presenting(trusting(&server_side), &other)] {
            let opened = server.connections();
            let error = within(client(&server.url(), transport).post("/").body("{}")).await.unwrap_err();
            assert_not_sent(&error, ErrorKind::Tls, 1);
            assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotRetryable));
            assert_eq!((server.connections() - opened, server.requests()), (1, 0));
        }
    }
}
