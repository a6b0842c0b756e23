//! DNS and TCP.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
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

/// Resolves a host and connects to it.
#[derive(Clone)]
pub(super) enum Dialer {
    Tcp { timeout: Duration, keep_alive: Option<Duration> },
    Custom(Arc<dyn Fn(Uri) -> BoxFuture<Result<Stream, BoxError>> + Send + Sync>),
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

    /// Connects to the host of `uri`. Stores when its name was resolved, unless the connector is custom.
    pub(super) async fn dial(&self, uri: Uri, resolved: Arc<OnceLock<Instant>>) -> Result<Stream, BoxError> {
        let (timeout, keep_alive) = match self {
            Self::Tcp { timeout, keep_alive } => (*timeout, *keep_alive),
            Self::Custom(connect) => return connect(uri).await,
        };
        let mut tcp = HttpConnector::new_with_resolver(tower::service_fn(move |name: Name| {
            let resolved = Arc::clone(&resolved);
            async move {
                let addresses = GaiResolver::new().call(name).await;
                let _ = resolved.set(clock::now());
                addresses
            }
        }));
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // hyper-util gives each address of the name an equal part of this time.
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_keepalive(keep_alive);
        tcp.set_keepalive_interval(keep_alive);
        tcp.set_keepalive_retries(keep_alive.map(|_| 3));
        Ok(Box::new(tcp.oneshot(uri).await?.into_inner()))
    }
}
