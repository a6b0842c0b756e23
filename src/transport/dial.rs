//! DNS and TCP.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy::connect::{
    HttpConnector,
    dns::{GaiFuture, GaiResolver, Name},
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
        let mut tcp = HttpConnector::new_with_resolver(Resolver { resolver: GaiResolver::new(), resolved });
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

/// The resolver of the operating system. Stores when it has resolved the name.
#[derive(Clone)]
struct Resolver {
    resolver: GaiResolver,
    resolved: Arc<OnceLock<Instant>>,
}

impl Service<Name> for Resolver {
    type Response = <GaiResolver as Service<Name>>::Response;
    type Error = <GaiResolver as Service<Name>>::Error;
    type Future = Resolving;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.resolver.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Resolving {
        Resolving { future: self.resolver.call(name), resolved: Arc::clone(&self.resolved) }
    }
}

struct Resolving {
    future: GaiFuture,
    resolved: Arc<OnceLock<Instant>>,
}

impl Future for Resolving {
    type Output = <GaiFuture as Future>::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.future).poll(cx);
        if polled.is_ready() {
            let _ = self.resolved.set(clock::now());
        }
        polled
    }
}
