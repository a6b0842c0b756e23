//! The TLS settings of a [`TransportConfig`].

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::{TransportConfig, certificates::Identity, settings::Version};
use crate::{config::InvalidConfig, error::BoxError};

impl TransportConfig {
    /// Also trusts the certificates in this PEM text, such as a company's own root. [`build`](Self::build) returns an
    /// error if the text contains no certificate, or contains one that cannot be a root.
    #[cfg_attr(docsrs, doc(cfg(feature = "rustls")))]
    pub fn with_root_certificates(mut self, pem: &[u8]) -> Self {
        if let Err(error) = self.add_roots(pem) {
            self.given.invalid.get_or_insert(error);
        }
        self
    }

    fn add_roots(&mut self, pem: &[u8]) -> Result<(), InvalidConfig> {
        let read = || -> Result<RootCertStore, BoxError> {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate?)?;
            }
            if roots.is_empty() { Err("none found".into()) } else { Ok(roots) }
        };
        let invalid = |error: BoxError| {
            InvalidConfig::of_setting("root certificates", error.to_string(), "certificates in pem form")
        };
        self.given.roots.extend(read().map_err(invalid)?.roots);
        Ok(())
    }

    /// Also trusts the roots of the operating system, which are read when a transport is built.
    #[cfg(feature = "native-roots")]
    #[cfg_attr(docsrs, doc(cfg(feature = "native-roots")))]
    pub fn with_native_roots(mut self) -> Self {
        self.native_roots = true;
        self
    }

    /// Removes the bundled roots from the trusted roots.
    #[cfg_attr(docsrs, doc(cfg(feature = "rustls")))]
    pub fn without_bundled_roots(mut self) -> Self {
        self.bundled_roots = false;
        self
    }

    /// Presents this certificate to a server that requests one (mutual TLS). `certificate_pem` contains the
    /// certificate, followed by its intermediates. `key_pem` contains its private key. [`build`](Self::build) returns
    /// an error if one of the texts cannot be parsed. The error does not quote the key.
    #[cfg_attr(docsrs, doc(cfg(feature = "rustls")))]
    pub fn with_client_certificate(mut self, certificate_pem: &[u8], key_pem: &[u8]) -> Self {
        if let Err(error) = self.set_identity(certificate_pem, key_pem) {
            self.given.invalid.get_or_insert(error);
        }
        self
    }

    fn set_identity(&mut self, certificate_pem: &[u8], key_pem: &[u8]) -> Result<(), InvalidConfig> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate_pem).collect();
        let chain = match chain {
            Ok(chain) if chain.is_empty() => Err("none found".to_owned()),
            chain => chain.map_err(|error| error.to_string()),
        };
        let chain = chain.map_err(|error| {
            InvalidConfig::of_setting("client certificate", error, "at least one certificate in pem form")
        })?;
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| {
            InvalidConfig::of_setting("client key", "…", "a private key in pem form: pkcs8, pkcs1 or sec1")
        })?;
        self.given.identity = Some(Arc::new(Identity { chain, key }));
        Ok(())
    }

    /// Creates the TLS configuration of the connections to servers.
    pub(super) fn tls(mut self) -> Result<ClientConfig, InvalidConfig> {
        self.given.invalid.take().map_or(Ok(()), Err)?;
        if let Some(path) = self.root_certificates.take() {
            self.add_roots(&file("root certificates", &path)?)?;
        }
        match (self.client_certificate.take(), self.client_key.take()) {
            (Some(certificate), Some(key)) => {
                self.set_identity(&file("client certificate", &certificate)?, &file("client key", &key)?)?;
            }
            (Some(certificate), None) => {
                let value = certificate.display().to_string();
                return Err(InvalidConfig::of_setting("client certificate", value, "a client key, too"));
            }
            (None, Some(key)) => {
                let expected = "a client certificate, too";
                return Err(InvalidConfig::of_setting("client key", key.display().to_string(), expected));
            }
            (None, None) => {}
        }
        let (version, roots) = (self.http, self.roots()?);
        // Sets the crypto provider explicitly, because the process may have no default provider or a different one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                let expected = "tls versions that the ring provider supports";
                InvalidConfig::new("tls versions", error.to_string(), expected)
            })?;
        let builder = builder.with_root_certificates(roots);
        let mut tls = match &self.given.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
                .map_err(|error| {
                    let expected = "the private key of the client certificate";
                    InvalidConfig::of_setting("client key", error.to_string(), expected)
                })?,
        };
        let names: &[&[u8]] = match version {
            Version::Http1 => &[b"http/1.1"],
            Version::Http2 => &[b"h2"],
            Version::Negotiated => &[b"h2", b"http/1.1"],
        };
        tls.alpn_protocols = names.iter().map(|name| name.to_vec()).collect();
        Ok(tls)
    }

    fn roots(&mut self) -> Result<RootCertStore, InvalidConfig> {
        let mut roots = RootCertStore { roots: self.given.roots.clone() };
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

fn file(field: &'static str, path: &Path) -> Result<Vec<u8>, InvalidConfig> {
    std::fs::read(path).map_err(|error| {
        InvalidConfig::of_setting(field, path.display().to_string(), format!("a readable file ({error})"))
    })
}
