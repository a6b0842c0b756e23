//! DNS and TCP.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy::connect::{
    HttpConnector,
    dns::{GaiResolver, Name},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt;
use tower_service::Service;

use super::stream::Stream;
use crate::{
    clock::{self, Instant},
    error::BoxError,
};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The addresses of a host name.
pub(super) type Addresses = std::vec::IntoIter<SocketAddr>;
type Resolve = fn(Name) -> BoxFuture<io::Result<Addresses>>;

/// Resolves a host and connects to it.
#[derive(Clone)]
pub(super) enum Dialer {
    Tcp { timeout: Duration, keep_alive: Option<Duration>, resolve: Resolve },
    Custom(Arc<dyn Fn(Uri) -> BoxFuture<Result<Stream, BoxError>> + Send + Sync>),
}

/// The result of the resolver.
pub(super) struct Resolved {
    pub(super) at: Instant,
    pub(super) addresses: Vec<IpAddr>,
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
    pub(super) fn dial(
        &self,
        uri: Uri,
        resolved: Arc<OnceLock<Resolved>>,
    ) -> BoxFuture<Result<Stream, BoxError>> {
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
        Box::pin(async move { Ok(Box::new(tcp.oneshot(uri).await?.into_inner()) as Stream) })
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
