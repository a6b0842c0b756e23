//! Opens a connection: DNS, TCP, the proxy and TLS, within one timeout.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::{
    Uri,
    uri::{Authority, Scheme},
};
use hyper_util::client::legacy::connect::{
    HttpConnector,
    dns::{GaiResolver, Name},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt;
use tower_service::Service;

use super::connection::Stream;
#[cfg(feature = "proxy")]
use super::proxy::Proxy;
use crate::{
    call::ConnectTimes,
    clock::{self, Instant},
    error::{BoxError, ConnectError, ConnectPhase},
};

/// Opens connections to servers.
pub(super) struct Connector {
    pub(super) dialer: Dialer,
    pub(super) timeout: Duration,
    #[cfg(feature = "proxy")]
    pub(super) proxy: Option<Proxy>,
    #[cfg(feature = "rustls")]
    pub(super) tls: Arc<rustls::ClientConfig>,
}

/// An open connection.
pub(super) struct Connected {
    pub(super) stream: Stream,
    /// Whether TLS has negotiated HTTP/2.
    pub(super) is_http2: bool,
    pub(super) times: ConnectTimes,
}

impl Connector {
    /// Opens a connection to an origin. An error shows the phase in which it occurred.
    pub(super) async fn connect(
        &self,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Connected, ConnectError> {
        let progress = Progress {
            phase: Mutex::new(ConnectPhase::Connect),
            started: clock::now(),
            resolved: Arc::default(),
            dialed: OnceLock::new(),
        };
        let uri = Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query("/");
        let connecting = async { self.open(uri.build()?, &progress).await };
        let connected = tokio::time::timeout(self.timeout, connecting).await;
        let error = match connected {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => error,
            Err(elapsed) => elapsed.into(),
        };
        let addresses = progress.resolved.get().map_or(&[][..], |resolved| &resolved.addresses);
        Err(ConnectError::new(progress.phase(), error).with_addresses(addresses).with_times(progress.times()))
    }

    async fn open(&self, uri: Uri, progress: &Progress) -> Result<Connected, BoxError> {
        #[cfg(feature = "proxy")]
        let stream = match self.proxy.as_ref().and_then(|proxy| proxy.intercept(&uri)) {
            Some(proxy) => {
                progress.enter(ConnectPhase::ConnectProxy);
                let dialed = self.dialer.dial(proxy.uri().clone(), Arc::clone(&progress.resolved)).await?;
                progress.enter(ConnectPhase::Proxy);
                self.through(proxy, dialed, &uri).await?
            }
            None => self.dial(uri.clone(), progress).await?,
        };
        #[cfg(not(feature = "proxy"))]
        let stream = self.dial(uri.clone(), progress).await?;
        let _ = progress.dialed.set(clock::now());
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(Connected { stream, is_http2: false, times: progress.times() });
        }
        #[cfg(feature = "rustls")]
        {
            progress.enter(ConnectPhase::Tls);
            let started = clock::now();
            let (stream, is_http2) = handshake(Arc::clone(&self.tls), &uri, stream).await?;
            let tls = Some(clock::now().saturating_duration_since(started));
            Ok(Connected { stream, is_http2, times: ConnectTimes { tls, ..progress.times() } })
        }
        #[cfg(not(feature = "rustls"))]
        Err("https needs the crate's feature `rustls`".into())
    }

    async fn dial(&self, uri: Uri, progress: &Progress) -> Result<Stream, BoxError> {
        let is_address = host(uri.host().unwrap_or_default()).parse::<IpAddr>().is_ok();
        if matches!(self.dialer, Dialer::Tcp { .. }) && !is_address {
            progress.enter(ConnectPhase::Resolve);
        }
        self.dialer.dial(uri, Arc::clone(&progress.resolved)).await
    }

    /// Returns `Some` if plain requests to this origin are sent to the proxy itself, with the value of
    /// `proxy-authorization`.
    #[cfg(feature = "proxy")]
    pub(super) fn forward(
        &self,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Option<Option<http::HeaderValue>> {
        self.proxy.as_ref()?.forward(scheme, authority)
    }

    /// Asks the proxy to connect to the server. A plain request goes to the proxy itself.
    #[cfg(feature = "proxy")]
    async fn through(
        &self,
        proxy: super::proxy::Intercept,
        #[cfg_attr(not(feature = "rustls"), expect(unused_mut, reason = "only TLS replaces the stream"))]
        mut stream: Stream,
        uri: &Uri,
    ) -> Result<Stream, BoxError> {
        #[cfg(feature = "rustls")]
        if proxy.uri().scheme() == Some(&Scheme::HTTPS) {
            let tls = super::tls::of_proxy(&self.tls);
            (stream, _) = handshake(Arc::new(tls), proxy.uri(), stream).await?;
        }
        if uri.scheme() == Some(&Scheme::HTTP) && !proxy.is_socks() {
            return Ok(stream);
        }
        proxy.tunnel(stream, uri).await
    }
}

#[cfg(feature = "rustls")]
async fn handshake(
    tls: Arc<rustls::ClientConfig>,
    uri: &Uri,
    stream: Stream,
) -> Result<(Stream, bool), BoxError> {
    let name = host(uri.host().unwrap_or_default());
    let name = rustls::pki_types::ServerName::try_from(name.to_owned())?;
    let stream = tokio_rustls::TlsConnector::from(tls).connect(name, stream).await?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((Box::new(stream), is_http2))
}

/// Removes the brackets of an IPv6 address.
fn host(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The phase that a new connection has reached.
struct Progress {
    phase: Mutex<ConnectPhase>,
    started: Instant,
    resolved: Arc<OnceLock<Resolved>>,
    /// When the stream to the server was open.
    dialed: OnceLock<Instant>,
}

impl Progress {
    fn enter(&self, phase: ConnectPhase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> ConnectPhase {
        match *self.phase.lock().unwrap_or_else(PoisonError::into_inner) {
            ConnectPhase::Resolve if self.resolved.get().is_some() => ConnectPhase::Connect,
            phase => phase,
        }
    }

    /// Returns the times of the phases before TLS that have ended.
    fn times(&self) -> ConnectTimes {
        let resolved = self.resolved.get().map(|resolved| resolved.at);
        let dialed = self.dialed.get();
        ConnectTimes {
            resolve: resolved.map(|resolved| resolved.saturating_duration_since(self.started)),
            connect: dialed.map(|dialed| dialed.saturating_duration_since(resolved.unwrap_or(self.started))),
            tls: None,
        }
    }
}

/// The number of unsent bytes from which on the socket accepts no further data. Without this limit, Linux buffers up to
/// 4 MB, so that an upload on a slow network seems to stall while the socket sends them. 128 KiB do not lower the
/// throughput, because bytes on their way to the server do not count.
#[cfg(any(target_os = "android", target_os = "linux"))]
const LONGEST_UNSENT: u32 = 128 * 1024;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The addresses of a host name.
type Addresses = std::vec::IntoIter<SocketAddr>;
type Resolve = fn(Name) -> BoxFuture<io::Result<Addresses>>;

/// Resolves a host and connects to it.
#[derive(Clone)]
pub(super) enum Dialer {
    Tcp { timeout: Duration, keep_alive: Option<Duration>, resolve: Resolve },
    Custom(Arc<dyn Fn(Uri) -> BoxFuture<Result<Stream, BoxError>> + Send + Sync>),
}

/// The result of the resolver.
struct Resolved {
    at: Instant,
    addresses: Vec<IpAddr>,
}

/// Asks the resolver of the operating system.
pub(super) fn resolve(name: Name) -> BoxFuture<io::Result<Addresses>> {
    Box::pin(async { Ok(GaiResolver::new().call(name).await?.collect::<Vec<_>>().into_iter()) })
}

impl Dialer {
    pub(super) fn custom<C>(connector: C) -> Self
    where
        C: Service<Uri, Response: AsyncRead + AsyncWrite + Send + Unpin + 'static, Error: Into<BoxError>>,
        C: Clone + Send + Sync + 'static,
        C::Future: Send,
    {
        Self::Custom(Arc::new(move |uri| {
            let connector = connector.clone();
            Box::pin(async move {
                let connected = connector.oneshot(uri).await.map_err(Into::into)?;
                Ok(Box::new(connected) as Stream)
            })
        }))
    }

    /// Connects to the host of `uri`. Stores the result of the resolver, unless the connector is custom.
    fn dial(&self, uri: Uri, resolved: Arc<OnceLock<Resolved>>) -> BoxFuture<Result<Stream, BoxError>> {
        let (timeout, keep_alive, resolve) = match self {
            Self::Tcp { timeout, keep_alive, resolve } => (*timeout, *keep_alive, *resolve),
            Self::Custom(connect) => return connect(uri),
        };
        let mut tcp = HttpConnector::new_with_resolver(Resolver { resolve, resolved });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // hyper-util gives each address of the name an equal part of this time.
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_keepalive(keep_alive);
        tcp.set_keepalive_interval(keep_alive);
        tcp.set_keepalive_retries(keep_alive.map(|_| 3));
        Box::pin(async move {
            let stream = tcp.oneshot(uri).await?.into_inner();
            #[cfg(any(target_os = "android", target_os = "linux"))]
            {
                // The connection also works without the option, which a kernel or a sandbox may reject.
                let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(LONGEST_UNSENT);
            }
            Ok(Box::new(stream) as Stream)
        })
    }
}

/// Resolves a name, and stores the result. A closure with these fields breaks the compiler's proof that the connecting
/// future is `Send`.
#[derive(Clone)]
struct Resolver {
    resolve: Resolve,
    resolved: Arc<OnceLock<Resolved>>,
}

impl Service<Name> for Resolver {
    type Response = Addresses;
    type Error = io::Error;
    type Future = BoxFuture<io::Result<Addresses>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, resolved) = ((self.resolve)(name), Arc::clone(&self.resolved));
        Box::pin(async move {
            let found = resolving.await?;
            let addresses = found.as_slice().iter().map(SocketAddr::ip).collect();
            let _ = resolved.set(Resolved { at: clock::now(), addresses });
            Ok(found)
        })
    }
}

#[cfg(test)]
mod tests;
