#[cfg(feature = "rustls")]
use std::path::PathBuf;
use std::{fmt, ops::RangeInclusive, time::Duration};

use http::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use super::{
    connect::{self, Connector, Dialer},
    connection::RequestBody,
    service::Transport,
};
#[cfg(feature = "serde")]
use crate::config::text::Text;
use crate::{
    config::{InvalidConfig, text::Written},
    error::BoxError,
    policy::LONGEST,
};

/// How a [`Transport`] connects to servers: timeouts, HTTP version, keep-alive, number of connections, TLS and proxy.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{Client, transport::TransportConfig};
///
/// # fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let transport = TransportConfig::new().with_connect_timeout(Duration::from_secs(3)).with_max_connections(16);
/// let client =
///     Client::builder("https://api.example.com")?.without_credential().client_with_transport(transport)?;
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
///
/// A [configuration file](crate::preset#configuration-from-files) has these fields:
///
/// | field | default |
/// |---|---|
/// | `connect_timeout` | `5s`, for DNS, TCP, proxy and TLS together |
/// | `idle_timeout` | `50s`, because common load balancers close an idle connection after 60 s or 75 s |
/// | `max_connections` | `256` for each origin, a quarter of the usual limit of open files |
/// | `tcp_keep_alive` | `15s`, as reqwest. `1s` to `9h6m7s` (32,767 s), or `off` |
/// | `http2_ping_interval` | `20s`. `off` disables HTTP/2 pings |
/// | `http2_ping_timeout` | `10s`, the default of the attempt timeout |
/// | `http2_ping_while_idle` | `false`: `true` also sends pings while no request is in progress |
/// | `http` | `negotiated`: HTTP/2 if TLS negotiates it, otherwise HTTP/1.1. `http1` and `http2` force a version |
/// | `bundled_roots` | `true`: trusts Mozilla's roots. Needs the feature `rustls` |
/// | `root_certificates` | none: the path of a PEM file with additional roots. Needs the feature `rustls` |
/// | `native_roots` | `false`: `true` also trusts the operating system's roots. Needs the feature `native-roots` |
/// | `client_certificate`, `client_key` | none: the paths of two PEM files. Needs the feature `rustls` |
/// | `proxy` | none: the URL of a proxy, or `environment`. Needs the feature `proxy`. Never serialised |
/// | `no_proxy` | none: hosts that are reached without the proxy, such as `10.0.0.0/8, example.com`. Needs the feature `proxy` |
///
/// TCP sends small packets without delay (`TCP_NODELAY`).
///
/// # Features
///
/// Some methods exist only with a [feature](crate#features):
///
/// | methods | feature |
/// |---|---|
/// | `with_root_certificates`, `without_bundled_roots`, `with_client_certificate` | `rustls` (default) |
/// | `with_native_roots` | `native-roots` |
/// | `with_proxy` | `proxy` |
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(expecting = "a table", default, deny_unknown_fields))]
pub struct TransportConfig {
    connect_timeout: Written<Duration>,
    pub(super) idle_timeout: Written<Duration>,
    pub(super) max_connections: usize,
    tcp_keep_alive: Written<KeepAlive>,
    pub(super) http2_ping_interval: Written<KeepAlive>,
    pub(super) http2_ping_timeout: Written<Duration>,
    pub(super) http2_ping_while_idle: bool,
    pub(super) http: Version,
    #[cfg(feature = "rustls")]
    pub(super) bundled_roots: bool,
    #[cfg(feature = "native-roots")]
    pub(super) native_roots: bool,
    /// The path of a PEM file, which is read when a transport is built.
    #[cfg(feature = "rustls")]
    pub(super) root_certificates: Option<PathBuf>,
    #[cfg(feature = "rustls")]
    pub(super) client_certificate: Option<PathBuf>,
    #[cfg(feature = "rustls")]
    pub(super) client_key: Option<PathBuf>,
    #[cfg(feature = "rustls")]
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) given: super::tls::Certificates,
    #[cfg(feature = "proxy")]
    #[cfg_attr(feature = "serde", serde(skip_serializing))]
    pub(super) proxy: Option<super::proxy::ProxyChoice>,
    #[cfg(feature = "proxy")]
    pub(super) no_proxy: Option<String>,
    #[cfg(all(feature = "serde", not(feature = "rustls")))]
    #[serde(skip_serializing, rename = "bundled_roots")]
    #[serde(alias = "root_certificates", alias = "client_certificate", alias = "client_key")]
    _rustls: WithoutRustls,
    #[cfg(all(feature = "serde", not(feature = "native-roots")))]
    #[serde(skip_serializing, rename = "native_roots")]
    _native_roots: WithoutNativeRoots,
    #[cfg(all(feature = "serde", not(feature = "proxy")))]
    #[serde(skip_serializing, rename = "proxy", alias = "no_proxy")]
    _proxy: WithoutProxy,
}

#[cfg(feature = "serde")]
field_of_feature!("rustls", WithoutRustls);
#[cfg(feature = "serde")]
field_of_feature!("native-roots", WithoutNativeRoots);
#[cfg(feature = "serde")]
field_of_feature!("proxy", WithoutProxy);

without_feature!(
    "rustls",
    "this method needs the feature `rustls` of tower-outbound",
    "enable it with `cargo add tower-outbound --features rustls`",
    TransportConfig { with_root_certificates(P) without_bundled_roots() with_client_certificate(C, K) }
);
without_feature!(
    "native-roots",
    "this method needs the feature `native-roots` of tower-outbound",
    "enable it with `cargo add tower-outbound --features native-roots`",
    TransportConfig { with_native_roots() }
);
without_feature!(
    "proxy",
    "this method needs the feature `proxy` of tower-outbound",
    "enable it with `cargo add tower-outbound --features proxy`",
    TransportConfig { with_proxy(P) }
);

impl TransportConfig {
    /// Creates a configuration with the defaults.
    pub fn new() -> Self {
        Self {
            connect_timeout: Written(Duration::from_secs(5)),
            idle_timeout: Written(Duration::from_secs(50)),
            max_connections: 256,
            tcp_keep_alive: Written(KeepAlive(Some(Duration::from_secs(15)))),
            http2_ping_interval: Written(KeepAlive(Some(Duration::from_secs(20)))),
            http2_ping_timeout: Written(Duration::from_secs(10)),
            http2_ping_while_idle: false,
            http: Version::Negotiated,
            #[cfg(feature = "rustls")]
            bundled_roots: true,
            #[cfg(feature = "native-roots")]
            native_roots: false,
            #[cfg(feature = "rustls")]
            root_certificates: None,
            #[cfg(feature = "rustls")]
            client_certificate: None,
            #[cfg(feature = "rustls")]
            client_key: None,
            #[cfg(feature = "rustls")]
            given: super::tls::Certificates::default(),
            #[cfg(feature = "proxy")]
            proxy: None,
            #[cfg(feature = "proxy")]
            no_proxy: None,
            #[cfg(all(feature = "serde", not(feature = "rustls")))]
            _rustls: WithoutRustls,
            #[cfg(all(feature = "serde", not(feature = "native-roots")))]
            _native_roots: WithoutNativeRoots,
            #[cfg(all(feature = "serde", not(feature = "proxy")))]
            _proxy: WithoutProxy,
        }
    }

    /// Limits the time to open a connection: DNS, TCP, the proxy and TLS together. If the name has several addresses,
    /// each address gets an equal part of the time for TCP. 5 s by default.
    pub fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout.0 = limit;
        self
    }

    /// No request uses a connection that has been idle for `limit`. Such a connection is closed after at most twice that
    /// time. 50 s by default.
    ///
    /// A request that leaves while the server closes its connection fails as "maybe processed", so choose less than the
    /// server's own idle timeout. Common load balancers close an idle connection after 60 s or 75 s. If a server sends
    /// the header `keep-alive: timeout=N`, its connection is reused for at most three quarters of N seconds.
    pub fn with_idle_timeout(mut self, limit: Duration) -> Self {
        self.idle_timeout.0 = limit;
        self
    }

    /// Limits the connections to each origin. 256 by default, a quarter of the usual limit of open files.
    ///
    /// A request that needs a further connection waits for one in order, until its deadline. Over HTTP/1.1, each
    /// request in progress needs a connection. Over HTTP/2, a further connection opens if the streams of the others are
    /// in use.
    pub fn with_max_connections(mut self, limit: usize) -> Self {
        self.max_connections = limit;
        self
    }

    /// Sends a TCP keep-alive probe after each `interval` without data. The operating system closes the connection
    /// after three probes without a response. 15 s by default. At least 1 s and at most
    /// 9h6m7s (32,767 s), the range of Linux.
    pub fn with_tcp_keep_alive(mut self, interval: Duration) -> Self {
        self.tcp_keep_alive.0 = KeepAlive(Some(interval));
        self
    }

    /// Sends no TCP keep-alive probes.
    pub fn without_tcp_keep_alive(mut self) -> Self {
        self.tcp_keep_alive.0 = KeepAlive(None);
        self
    }

    /// Sends an HTTP/2 ping after each `interval` in which the server sent nothing, while requests are in progress. The
    /// connection is closed if no response to the ping arrives within `timeout`. 20 s and 10 s by default.
    ///
    /// Some gRPC servers close a connection on which pings arrive more often than every 5 minutes while they send
    /// nothing. Choose a longer interval for long silent streams from such a server.
    pub fn with_http2_pings(mut self, interval: Duration, timeout: Duration) -> Self {
        self.http2_ping_interval.0 = KeepAlive(Some(interval));
        self.http2_ping_timeout.0 = timeout;
        self
    }

    /// Also sends HTTP/2 pings while no request is in progress, so that the next request does not use a dead
    /// connection.
    pub fn with_http2_pings_while_idle(mut self) -> Self {
        self.http2_ping_while_idle = true;
        self
    }

    /// Sends no HTTP/2 pings.
    pub fn without_http2_pings(mut self) -> Self {
        self.http2_ping_interval.0 = KeepAlive(None);
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

    /// Builds the transport.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - a timeout or interval is zero or longer than 366 days, or the maximum number of connections is 0;
    /// - the interval of TCP keep-alive probes is shorter than 1 s or longer than 9h6m7s (32,767 s);
    /// - a certificate or key cannot be read, or a client certificate has no key;
    /// - the proxy's URL is invalid. The error does not quote its user and password.
    pub fn build<B: RequestBody>(self) -> Result<Transport<B>, InvalidConfig> {
        let (timeout, keep_alive) = (self.connect_timeout.0, self.tcp_keep_alive.0.0);
        let dialer = Dialer::Tcp { timeout, keep_alive, resolve: connect::resolve };
        self.with_dialer(dialer)
    }

    /// Builds the transport over a custom connector, which replaces DNS and TCP. TLS and the connect timeout stay. Use
    /// it for a Unix socket, another resolver or a simulated network.
    ///
    /// The connector is called with a URI that has only a scheme, a host and a port. With a proxy, this is the URI of
    /// the proxy.
    ///
    /// ```
    /// use http_body_util::Empty;
    /// use tokio::net::TcpStream;
    /// use tower_outbound::transport::{Transport, TransportConfig};
    ///
    /// # fn run() -> Result<(), tower_outbound::InvalidConfig> {
    /// // All hosts are on this machine.
    /// let connector = tower::service_fn(|uri: http::Uri| async move {
    ///     TcpStream::connect(("127.0.0.1", uri.port_u16().unwrap_or(80))).await
    /// });
    /// let transport: Transport<Empty<bytes::Bytes>> = TransportConfig::new().build_with_connector(connector)?;
    /// # Ok(())
    /// # }
    /// # run().unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`build`](Self::build).
    pub fn build_with_connector<B, C>(self, connector: C) -> Result<Transport<B>, InvalidConfig>
    where
        B: RequestBody,
        C: Service<Uri, Response: AsyncRead + AsyncWrite + Send + Unpin + 'static, Error: Into<BoxError>>,
        C: Clone + Send + Sync + 'static,
        C::Future: Send,
    {
        self.with_dialer(Dialer::custom(connector))
    }

    pub(super) fn with_dialer<B: RequestBody>(self, dialer: Dialer) -> Result<Transport<B>, InvalidConfig> {
        let limits = [
            ("connect timeout", Some(self.connect_timeout.0)),
            ("idle timeout", Some(self.idle_timeout.0)),
            ("http2 ping interval", self.http2_ping_interval.0.0),
            ("http2 ping timeout", Some(self.http2_ping_timeout.0)),
        ];
        for (field, limit) in limits.into_iter().filter_map(|(field, limit)| Some((field, limit?))) {
            if limit.is_zero() || limit > LONGEST {
                let expected = "more than zero, at most 366 days";
                return Err(InvalidConfig::of_setting(field, format!("{limit:?}"), expected));
            }
        }
        // Linux rejects other intervals, and then probes only after 2 h.
        const TCP_KEEP_ALIVE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(32_767);
        if let Some(interval) = self.tcp_keep_alive.0.0.filter(|interval| !TCP_KEEP_ALIVE.contains(interval))
        {
            let expected = "1s to 9h6m7s (32,767 s), the range of Linux";
            return Err(InvalidConfig::of_setting("tcp keep-alive", format!("{interval:?}"), expected));
        }
        if self.max_connections == 0 {
            return Err(InvalidConfig::new("maximum connections", "0", "at least 1").at("max_connections"));
        }
        let connector = Connector {
            dialer,
            timeout: self.connect_timeout.0,
            #[cfg(feature = "proxy")]
            proxy: self.proxy()?,
            #[cfg(feature = "rustls")]
            tls: std::sync::Arc::new(self.tls()?),
        };
        // The pool keeps no certificate and no key.
        #[cfg(feature = "rustls")]
        let kept = Self { given: super::tls::Certificates::default(), ..self };
        #[cfg(not(feature = "rustls"))]
        let kept = self;
        Ok(Transport::new(connector, kept))
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub(super) enum Version {
    Negotiated,
    Http1,
    Http2,
}

/// The interval of a keep-alive, or `None` if it is off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeepAlive(pub(super) Option<Duration>);

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(interval) => interval.fmt(f),
            None => f.write_str("off"),
        }
    }
}

#[cfg(feature = "serde")]
crate::config::text::text! {
    KeepAlive, "a duration such as `20s`, or `off`",
        |text: &str| match text {
            "off" => Ok(KeepAlive(None)),
            text => <Duration as Text>::read(text).map(|interval| KeepAlive(Some(interval))),
        },
        |keep_alive: &KeepAlive| keep_alive.0.as_ref().map_or("off".to_owned(), Text::write);
}
