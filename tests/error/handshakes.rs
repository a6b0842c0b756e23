//! TLS handshakes with real servers that fail permanently, because of a certificate or of the settings.

use std::sync::Arc;

use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
        server::WebPkiClientVerifier,
        version::{TLS12, TLS13},
    },
};

use super::peer;

type Versions = &'static [&'static SupportedProtocolVersion];
const BOTH: Versions = &[&TLS12, &TLS13];
const OLD: Versions = &[&TLS12];
const NEW: Versions = &[&TLS13];

fn certificate(names: &[&str], last_year: i32) -> CertifiedKey<KeyPair> {
    let mut params =
        CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.not_after = date_time_ymd(last_year, 1, 1);
    let signing_key = KeyPair::generate().unwrap();
    CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
}

fn roots(certificate: &CertifiedKey<KeyPair>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    roots
}

/// Returns the path of each request. It is long, so that a server can recognize that the request has arrived.
pub(crate) fn long_path() -> String {
    format!("/{}", "x".repeat(6_000))
}

/// A handshake that fails each time.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    server: CertifiedKey<KeyPair>,
    server_versions: Versions,
    /// The certificate that the client trusts, if it is not the server's.
    trusted: Option<CertifiedKey<KeyPair>>,
    pub(crate) client_versions: Versions,
    /// Whether the server requires a certificate of the client, which has none.
    mutual: bool,
    /// Whether the alert arrives after the request was sent.
    pub(crate) is_late: bool,
}

impl Case {
    fn new(name: &'static str) -> Self {
        let server = certificate(&["127.0.0.1"], 2_100);
        let (server_versions, client_versions) = (BOTH, BOTH);
        Self { name, server, server_versions, trusted: None, client_versions, mutual: false, is_late: false }
    }

    pub(crate) fn all() -> Vec<Self> {
        let other = || certificate(&["127.0.0.1"], 2_100);
        vec![
            Self { server: certificate(&["127.0.0.1"], 2_020), ..Self::new("expired certificate") },
            Self { server: certificate(&["api.test"], 2_100), ..Self::new("certificate with another name") },
            Self { trusted: Some(other()), ..Self::new("certificate of an unknown issuer") },
            Self { mutual: true, server_versions: OLD, ..Self::new("alert in the handshake, TLS 1.2") },
            Self {
                mutual: true,
                server_versions: NEW,
                is_late: true,
                ..Self::new("alert after the handshake, TLS 1.3")
            },
            Self { server_versions: NEW, client_versions: OLD, ..Self::new("alert because of the version") },
        ]
    }

    /// Starts the server, and returns its URL.
    pub(crate) fn serve(&self, protocol: &'static [u8]) -> String {
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.server.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.server_versions)
            .unwrap();
        let trusted = Arc::new(roots(&certificate(&["client"], 2_100)));
        let config = match self.mutual {
            true => config.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(trusted, provider).build().unwrap(),
            ),
            false => config.with_no_client_auth(),
        };
        let mut config = config.with_single_cert(vec![self.server.cert.der().clone()], key).unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let hold = if self.is_late { 3_000 } else { 0 };
        format!("https://{}", peer::serve(move |stream| fail_handshake(acceptor.clone(), stream, hold)))
    }

    pub(crate) fn trusted(&self) -> &CertifiedKey<KeyPair> {
        self.trusted.as_ref().unwrap_or(&self.server)
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(self.client_versions)
            .unwrap()
            .with_root_certificates(roots(self.trusted()))
            .with_no_client_auth()
    }
}

/// Serves a handshake. After the first message of the client, holds `hold` bytes back until all of them have arrived.
/// The connection stays open, so that the client reads the alert.
async fn fail_handshake(acceptor: TlsAcceptor, mut stream: TcpStream, hold: usize) {
    let (inner, outer) = tokio::io::duplex(1 << 16);
    let ((mut read, mut write), (mut from, mut to)) = (stream.split(), tokio::io::split(outer));
    let inbound = async {
        let mut bytes = Vec::with_capacity(1 << 16);
        let _ = read.read_buf(&mut bytes).await;
        let _ = to.write_all(&bytes).await;
        bytes.clear();
        while bytes.len() < hold && read.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {}
        let _ = to.write_all(&bytes).await;
        let _ = tokio::io::copy(&mut read, &mut to).await;
    };
    let handshake = async {
        match acceptor.accept(inner).into_fallible().await {
            Ok(mut tls) => drop(tls.read_to_end(&mut Vec::new()).await),
            Err((_, mut raw)) => drop(raw.read_to_end(&mut Vec::new()).await),
        }
    };
    let outbound = async { drop(tokio::io::copy(&mut from, &mut write).await) };
    tokio::join!(inbound, outbound, handshake);
}
