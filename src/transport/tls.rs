//! The TLS settings of a [`TransportConfig`].

use std::{fmt, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use zeroize::Zeroizing;

use super::{TransportConfig, config::Version};
use crate::{config::InvalidConfig, error::BoxError};

/// The certificates and the key that are given in code, as PEM texts.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Certificates {
    roots: Vec<Vec<u8>>,
    identity: Option<Identity>,
}

/// A client certificate with its intermediates, and its private key.
type Identity = (Vec<u8>, Zeroizing<Vec<u8>>);

/// Shows no certificate and no key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.len())
            .field("has_client_certificate", &self.identity.is_some())
            .finish()
    }
}

impl TransportConfig {
    /// Also trusts the certificates in this PEM text, such as a company's own root. [`build`](Self::build) returns an
    /// error if the text contains no certificate, or contains one that cannot be a root.
    pub fn with_root_certificates(mut self, pem: &[u8]) -> Self {
        self.given.roots.push(pem.to_vec());
        self
    }

    /// Also trusts the roots of the operating system, which are read when a transport is built.
    #[cfg(feature = "native-roots")]
    pub fn with_native_roots(mut self) -> Self {
        self.native_roots = true;
        self
    }

    /// Removes the bundled roots from the trusted roots.
    pub fn without_bundled_roots(mut self) -> Self {
        self.bundled_roots = false;
        self
    }

    /// Presents this certificate to a server that requests one (mutual TLS). `certificate_pem` contains the
    /// certificate, followed by its intermediates. `key_pem` contains its private key. [`build`](Self::build) returns
    /// an error if one of the texts cannot be parsed. The error does not quote the key.
    pub fn with_client_certificate(mut self, certificate_pem: &[u8], key_pem: &[u8]) -> Self {
        self.given.identity = Some((certificate_pem.to_vec(), key_pem.to_vec().into()));
        self
    }

    /// Creates the TLS configuration of the connections to servers.
    pub(super) fn tls(&self) -> Result<ClientConfig, InvalidConfig> {
        let roots = self.roots()?;
        // Sets the crypto provider explicitly, because the process may have no default provider or a different one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                let expected = "tls versions that the ring provider supports";
                InvalidConfig::new("tls versions", error.to_string(), expected)
            })?;
        let builder = builder.with_root_certificates(roots);
        let mut tls = match self.identity()? {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(&certificate).map_err(|error| {
                    let expected = "at least one certificate in pem form";
                    InvalidConfig::of_setting("client certificate", error.to_string(), expected)
                })?;
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
                    let expected = "a private key in pem form: pkcs8, pkcs1 or sec1";
                    InvalidConfig::of_setting("client key", "…", expected)
                })?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    let expected = "the private key of the client certificate";
                    InvalidConfig::of_setting("client key", error.to_string(), expected)
                })?
            }
        };
        let names: &[&[u8]] = match self.http {
            Version::Http1 => &[b"http/1.1"],
            Version::Http2 => &[b"h2"],
            Version::Negotiated => &[b"h2", b"http/1.1"],
        };
        tls.alpn_protocols = names.iter().map(|name| name.to_vec()).collect();
        Ok(tls)
    }

    /// Returns the client certificate and its key. Those of files take precedence.
    fn identity(&self) -> Result<Option<Identity>, InvalidConfig> {
        match (&self.client_certificate, &self.client_key) {
            (Some(certificate), Some(key)) => {
                Ok(Some((file("client certificate", certificate)?, file("client key", key)?.into())))
            }
            (Some(certificate), None) => {
                let value = certificate.display().to_string();
                Err(InvalidConfig::of_setting("client certificate", value, "a client key, too"))
            }
            (None, Some(key)) => {
                let expected = "a client certificate, too";
                Err(InvalidConfig::of_setting("client key", key.display().to_string(), expected))
            }
            (None, None) => Ok(self.given.identity.clone()),
        }
    }

    fn roots(&self) -> Result<RootCertStore, InvalidConfig> {
        let mut roots = RootCertStore::empty();
        let mut add = |pem: &[u8]| -> Result<(), BoxError> {
            Ok(certificates(pem)?.into_iter().try_for_each(|root| roots.add(root))?)
        };
        let file = self.root_certificates.as_ref().map(|path| file("root certificates", path)).transpose()?;
        for pem in self.given.roots.iter().chain(&file) {
            add(pem).map_err(|error| {
                InvalidConfig::of_setting("root certificates", error.to_string(), "certificates in pem form")
            })?;
        }
        if self.bundled_roots {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        #[cfg(feature = "native-roots")]
        if self.native_roots {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map_or("none found".to_owned(), ToString::to_string);
                return Err(InvalidConfig::of_setting("native roots", why, "at least one certificate"));
            }
        }
        Ok(roots)
    }
}

/// Returns the TLS configuration of the connection to a proxy: HTTP/1.1, without the client certificate, which is for
/// the servers only.
#[cfg(feature = "proxy")]
pub(super) fn of_proxy(tls: &ClientConfig) -> ClientConfig {
    #[derive(Debug)]
    struct NoCertificate;

    impl rustls::client::ResolvesClientCert for NoCertificate {
        fn resolve(
            &self,
            _: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }

    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    tls.client_auth_cert_resolver = Arc::new(NoCertificate);
    // A session of a server would resume with the identity of its client certificate.
    tls.resumption = rustls::client::Resumption::default();
    tls
}

/// Returns the certificates of a PEM text, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() { Err("none found".into()) } else { Ok(found) }
}

fn file(field: &'static str, path: &Path) -> Result<Vec<u8>, InvalidConfig> {
    std::fs::read(path).map_err(|error| {
        InvalidConfig::of_setting(field, path.display().to_string(), format!("a readable file ({error})"))
    })
}

#[cfg(all(test, feature = "proxy"))]
mod tests {
    use super::*;

    #[test]
    fn proxy_gets_no_client_certificate() {
        let certified = rcgen::generate_simple_self_signed(["client.test".to_owned()]).unwrap();
        let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let config = TransportConfig::new().with_client_certificate(certificate.as_bytes(), key.as_bytes());
        let tls = config.tls().unwrap();
        let has_certificate = |tls: &ClientConfig| tls.client_auth_cert_resolver.has_certs();
        assert_eq!((has_certificate(&tls), has_certificate(&of_proxy(&tls))), (true, false));
    }

    #[test]
    fn transport_keeps_no_client_key_in_its_pool() {
        let certified = rcgen::generate_simple_self_signed(["client.test".to_owned()]).unwrap();
        let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let config = TransportConfig::new().with_client_certificate(certificate.as_bytes(), key.as_bytes());
        let has_certificate = |debug: String| debug.contains("has_client_certificate: true");
        assert!(has_certificate(format!("{config:?}")));
        let transport: crate::transport::Transport = config.build().unwrap();
        assert!(!has_certificate(format!("{transport:?}")));
    }
}
