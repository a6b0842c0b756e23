#[cfg(feature = "rustls")]
use std::path::PathBuf;
use std::{sync::Arc, time::Duration};

use http::Uri;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
#[cfg(feature = "rustls")]
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tower::ServiceExt;

use crate::{
    auth::Origin,
    body::{Body, ReplayBody},
    config::InvalidConfig,
    config::text::Written,
    error::BoxError,
    policy::LONGEST,
};

#[cfg(feature = "rustls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "rustls"))]
type Connector = HttpConnector;

/// How a client connects to its service: timeouts, HTTP version and TLS roots.
///
/// A [configuration file](crate::preset#configuration-from-files) has these fields:
///
/// | field | default |
/// |---|---|
/// | `connect_timeout` | `5s`, for DNS, TCP and TLS together |
/// | `idle_timeout` | `50s`, below the 60 s after which common load balancers close an idle connection |
/// | `http` | `negotiated`: HTTP/2 if TLS negotiates it, otherwise HTTP/1.1. `http1` and `http2` force a version |
/// | `bundled_roots` | `true`: trusts Mozilla's roots. Needs the feature `rustls` |
/// | `root_certificates` | none: the path of a PEM file with additional roots. Needs the feature `rustls` |
/// | `native_roots` | `false`: `true` also trusts the operating system's roots. Needs the feature `native-roots` |
///
/// TCP sends small packets without delay (`TCP_NODELAY`).
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Transport {
    connect_timeout: Written<Duration>,
    idle_timeout: Written<Duration>,
    http: Version,
    #[cfg(feature = "rustls")]
    bundled_roots: bool,
    #[cfg(feature = "native-roots")]
    native_roots: bool,
    /// The path of a PEM file, which is read when a client is created.
    #[cfg(feature = "rustls")]
    root_certificates: Option<PathBuf>,
    #[cfg(feature = "rustls")]
    #[cfg_attr(feature = "serde", serde(skip))]
    added_roots: RootCertStore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
enum Version {
    Negotiated,
    Http1,
    Http2,
}

impl Transport {
    /// Creates a transport with the defaults.
    pub fn new() -> Self {
        Self {
            connect_timeout: Written(Duration::from_secs(5)),
            idle_timeout: Written(Duration::from_secs(50)),
            http: Version::Negotiated,
            #[cfg(feature = "rustls")]
            bundled_roots: true,
            #[cfg(feature = "native-roots")]
            native_roots: false,
            #[cfg(feature = "rustls")]
            root_certificates: None,
            #[cfg(feature = "rustls")]
            added_roots: RootCertStore::empty(),
        }
    }

    /// Limits the time to resolve the host, connect and complete the TLS handshake. 5 s by default.
    pub fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout.0 = limit;
        self
    }

    /// Closes a connection that has been idle for `limit`. 50 s by default.
    pub fn with_idle_timeout(mut self, limit: Duration) -> Self {
        self.idle_timeout.0 = limit;
        self
    }

    /// Uses HTTP/2 without negotiation, even without TLS. Use it for a server that is known to support HTTP/2.
    pub fn with_http2_prior_knowledge(mut self) -> Self {
        self.http = Version::Http2;
        self
    }

    /// Uses only HTTP/1.1, even if TLS could negotiate HTTP/2. Use it for requests with an upgrade, such as to a
    /// WebSocket. HTTP/2 does not support upgrades.
    pub fn with_http1_only(mut self) -> Self {
        self.http = Version::Http1;
        self
    }

    /// Also trusts the certificates in this PEM text, such as a company's own root.
    ///
    /// # Errors
    ///
    /// Returns an error if the text contains no certificate, or contains one that cannot be a root.
    #[cfg(feature = "rustls")]
    pub fn with_root_certificates(mut self, pem: &[u8]) -> Result<Self, InvalidConfig> {
        let read = || -> Result<RootCertStore, BoxError> {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate?)?;
            }
            if roots.is_empty() { Err("none found".into()) } else { Ok(roots) }
        };
        let invalid = |error: BoxError| {
            InvalidConfig::new("root certificates", error.to_string(), "certificates in pem form")
        };
        self.added_roots.extend(read().map_err(invalid)?.roots);
        Ok(self)
    }

    /// Also trusts the roots of the operating system, which are read when a client is created.
    #[cfg(feature = "native-roots")]
    pub fn with_native_roots(mut self) -> Self {
        self.native_roots = true;
        self
    }

    /// Removes the bundled roots from the trusted roots.
    #[cfg(feature = "rustls")]
    pub fn without_bundled_roots(mut self) -> Self {
        self.bundled_roots = false;
        self
    }

    #[cfg(feature = "rustls")]
    fn roots(mut self) -> Result<RootCertStore, InvalidConfig> {
        if let Some(path) = self.root_certificates.take() {
            let unreadable = |error| {
                let expected = format!("a readable file ({error})");
                InvalidConfig::new("root certificates", path.display().to_string(), expected)
            };
            self = self.with_root_certificates(&std::fs::read(&path).map_err(unreadable)?)?;
        }
        let mut roots = self.added_roots;
        if self.bundled_roots {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        #[cfg(feature = "native-roots")]
        if self.native_roots {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map_or("none found".to_owned(), ToString::to_string);
                return Err(InvalidConfig::new("native roots", why, "at least one certificate"));
            }
        }
        Ok(roots)
    }

    /// Creates hyper-util's client with its connection pool. The client is in an `Arc`, because the retry layer clones
    /// its inner service for each call, the rate limit layer for each attempt, and a clone of the client copies its
    /// settings.
    pub(super) fn connections(
        self,
        origin: &Origin,
    ) -> Result<Arc<Client<impl Connect + Clone + use<>, ReplayBody<Body>>>, InvalidConfig> {
        for (field, limit) in
            [("connect timeout", self.connect_timeout.0), ("idle timeout", self.idle_timeout.0)]
        {
            if limit.is_zero() || limit > LONGEST {
                let expected = "more than zero, at most 366 days";
                return Err(InvalidConfig::new(field, format!("{limit:?}"), expected));
            }
        }
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(self.connect_timeout.0));
        // As reqwest: a dead connection is noticed within a minute.
        http.set_keepalive(Some(Duration::from_secs(15)));
        http.set_keepalive_interval(Some(Duration::from_secs(15)));
        http.set_keepalive_retries(Some(3));
        let limit = self.connect_timeout.0;
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_idle_timeout(self.idle_timeout.0)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(Duration::from_secs(20))
            .http2_keep_alive_timeout(Duration::from_secs(10))
            .http2_only(self.http == Version::Http2);
        // hyper-util clones its connector twice for each request, so the connector is in an `Arc`, too.
        let connector = Arc::new(self.connector(http, origin)?);
        let connect = tower::service_fn(move |uri: Uri| {
            let connecting = Connector::clone(&connector).oneshot(uri);
            Box::pin(async move {
                match tokio::time::timeout(limit, connecting).await {
                    Ok(connected) => connected.map_err(BoxError::from),
                    Err(late) => Err(late.into()),
                }
            })
        });
        Ok(Arc::new(builder.build(connect)))
    }

    #[cfg(feature = "rustls")]
    fn connector(self, http: HttpConnector, _: &Origin) -> Result<Connector, InvalidConfig> {
        let version = self.http;
        // Sets the crypto provider explicitly, because the process may have no default provider or a different one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                InvalidConfig::new(
                    "tls versions",
                    error.to_string(),
                    "tls versions that the ring provider supports",
                )
            })?
            .with_root_certificates(self.roots()?)
            .with_no_client_auth();
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        Ok(match version {
            Version::Http1 => builder.enable_http1().wrap_connector(http),
            Version::Http2 => builder.enable_http2().wrap_connector(http),
            Version::Negotiated => builder.enable_http1().enable_http2().wrap_connector(http),
        })
    }

    #[cfg(not(feature = "rustls"))]
    fn connector(self, http: HttpConnector, origin: &Origin) -> Result<Connector, InvalidConfig> {
        if origin.is_tls() {
            let expected = "http, or https with the crate's feature `rustls`";
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
