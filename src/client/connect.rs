use std::{fmt, sync::Arc, time::Duration};

use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use crate::{
    auth::Origin,
    body::{Body, ReplayBody},
    error::InvalidConfig,
};

#[cfg(feature = "rustls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "rustls"))]
type Connector = HttpConnector;

/// The client with its pool of connections. Behind a pointer, because the layers clone their inner service for each call,
/// and the client holds its settings by value.
pub(super) type Connections = Arc<Client<Connector, ReplayBody<Body>>>;

/// How a ready client reaches its service: TLS roots, HTTP version, connections.
///
/// # Default
///
/// Mozilla's roots, bundled. HTTP/2 where TLS negotiates it, else HTTP/1.1. 5 s to connect, TCP without delay
/// of small packets, idle connections closed after 90 s (hyper-util's own default).
#[derive(Clone)]
pub struct Transport {
    connect_timeout: Duration,
    idle_timeout: Duration,
    version: Version,
    #[cfg(feature = "rustls")]
    roots: rustls::RootCertStore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Negotiated,
    Http1,
    Http2,
}

/// As for every other setting; hyper-util adds it to a clock.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Transport {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(90),
            version: Version::Negotiated,
            #[cfg(feature = "rustls")]
            roots: webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
        }
    }

    /// Gives up connecting to one address after `limit`. 5 s by default.
    pub fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Closes a connection that nothing used for `limit`. 90 s by default.
    pub fn with_idle_timeout(mut self, limit: Duration) -> Self {
        self.idle_timeout = limit;
        self
    }

    /// Speaks HTTP/2 from the first byte, also without TLS, to a server that is known to speak it.
    pub fn with_http2_prior_knowledge(mut self) -> Self {
        self.version = Version::Http2;
        self
    }

    /// Speaks HTTP/1.1 alone, also where TLS would negotiate HTTP/2: for requests that ask for an upgrade, such as to a
    /// WebSocket, which HTTP/2 does not know.
    pub fn with_http1_only(mut self) -> Self {
        self.version = Version::Http1;
        self
    }

    /// Trusts the certificates in this PEM text, such as a company's own root, besides the roots that are
    /// trusted already.
    ///
    /// # Errors
    ///
    /// When there is no certificate in it, or one that can't be a root.
    #[cfg(feature = "rustls")]
    pub fn with_root_certificates(mut self, pem: &[u8]) -> Result<Self, InvalidConfig> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};

        let invalid =
            |reason: String| InvalidConfig::new("root certificates", reason, "certificates in pem form");
        let before = self.roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            self.roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        if self.roots.len() == before {
            return Err(invalid("none found".to_owned()));
        }
        Ok(self)
    }

    /// Trusts the roots of the operating system, besides those that are trusted already.
    ///
    /// # Errors
    ///
    /// When the operating system has none that can be read.
    #[cfg(feature = "native-roots")]
    pub fn with_native_roots(mut self) -> Result<Self, InvalidConfig> {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = self.roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why = found.errors.first().map_or("none found".to_owned(), ToString::to_string);
            return Err(InvalidConfig::new("native roots", why, "at least one certificate"));
        }
        Ok(self)
    }

    /// Trusts none of the roots that are trusted already; those added after it are all there is.
    #[cfg(feature = "rustls")]
    pub fn without_roots(mut self) -> Self {
        self.roots = rustls::RootCertStore::empty();
        self
    }

    pub(super) fn connections(self, origin: &Origin) -> Result<Connections, InvalidConfig> {
        for (field, limit) in [("connect timeout", self.connect_timeout), ("idle timeout", self.idle_timeout)]
        {
            if limit.is_zero() || limit > LONGEST {
                return Err(InvalidConfig::new(
                    field,
                    format!("{limit:?}"),
                    "more than zero, at most 366 days",
                ));
            }
        }
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(self.connect_timeout));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_idle_timeout(self.idle_timeout)
            .pool_timer(TokioTimer::new())
            .http2_only(self.version == Version::Http2);
        Ok(Arc::new(builder.build(self.connector(http, origin)?)))
    }

    #[cfg(feature = "rustls")]
    fn connector(self, http: HttpConnector, _: &Origin) -> Result<Connector, InvalidConfig> {
        // The provider is named, and not the process's default, which somebody else may set or not.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                InvalidConfig::new("tls versions", error.to_string(), "those of the ring provider")
            })?
            .with_root_certificates(self.roots)
            .with_no_client_auth();
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        Ok(match self.version {
            Version::Http1 => builder.enable_http1().wrap_connector(http),
            Version::Http2 => builder.enable_http2().wrap_connector(http),
            Version::Negotiated => builder.enable_http1().enable_http2().wrap_connector(http),
        })
    }

    #[cfg(not(feature = "rustls"))]
    fn connector(self, http: HttpConnector, origin: &Origin) -> Result<Connector, InvalidConfig> {
        if origin.is_tls() {
            let expected = "http, or the crate's feature `rustls` switched on";
            return Err(InvalidConfig::new("base url", origin.to_string(), expected));
        }
        Ok(http)
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("connect_timeout", &self.connect_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
