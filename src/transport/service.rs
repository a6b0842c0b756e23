use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use http::{Request, Response, Version};
use tower_service::Service;

use super::{
    connect::Connector, lease::Lease, pool::Host, request_body::RequestBody, sending::Sending,
    settings::PoolSettings, target::Target,
};
use crate::{
    body::{Body, ReplayBody},
    error::Error,
};

/// The number of origins without connections that are stored.
const STORED_ORIGINS: usize = 64;

/// Sends requests with absolute URIs over pooled connections: see [the module](super#phases).
///
/// ```
/// use tower_outbound::{Client, transport::TransportConfig};
///
/// # fn run() -> Result<(), tower_outbound::InvalidConfig> {
/// // Two clients that share connections.
/// let transport = TransportConfig::new().build()?;
/// let builder = Client::builder("https://api.example.com")?.without_credential();
/// let (first, second) =
///     (builder.client_with_service(transport.clone())?, builder.client_with_service(transport)?);
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
///
/// # Errors
///
/// Returns an [`Error`] with the [kind](Error::kind) of the failure. It proves whether the request was sent, so that the
/// [`retry`](crate::retry) layer retries every method if it was not.
///
/// # Cancellation
///
/// Dropping the future of a request that waits for a connection sends nothing. After the request was handed to a
/// connection, dropping the future closes the HTTP/1.1 connection, or resets the HTTP/2 stream.
///
/// # Clone
///
/// Cheap: every clone uses the same connections.
pub struct Transport<B: RequestBody = ReplayBody<Body>> {
    inner: Arc<Inner<B>>,
}

struct Inner<B: RequestBody> {
    connector: Arc<Connector>,
    settings: Arc<PoolSettings>,
    /// The origins. A client has only one.
    hosts: Mutex<Vec<Arc<Host<B>>>>,
}

impl<B: RequestBody> Transport<B> {
    pub(super) fn new(connector: Connector, settings: PoolSettings) -> Self {
        let (connector, settings) = (Arc::new(connector), Arc::new(settings));
        Self { inner: Arc::new(Inner { connector, settings, hosts: Mutex::default() }) }
    }

    /// Sends a request.
    pub(crate) fn send(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<Body>, Error>> + Send + use<B> {
        Sending::new(self.inner.host(&request), request, Lease::send)
    }
}

impl<B: RequestBody> Inner<B> {
    /// Returns the connections to the origin of the request.
    fn host(&self, request: &Request<B>) -> Result<Arc<Host<B>>, Error> {
        let (Some(scheme), Some(authority)) = (request.uri().scheme(), request.uri().authority()) else {
            return Err(Error::invalid_request("the uri of a request must be absolute"));
        };
        if ![Version::HTTP_10, Version::HTTP_11, Version::HTTP_2].contains(&request.version()) {
            return Err(Error::invalid_request("the version of a request must be HTTP/1.1 or HTTP/2"));
        }
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.iter().find(|host| host.target.is(scheme, authority)) {
            return Ok(Arc::clone(host));
        }
        if hosts.len() >= STORED_ORIGINS {
            hosts.retain(|host| !host.is_unused());
        }
        #[cfg(feature = "proxy")]
        let forward = self.connector.forward(scheme, authority);
        #[cfg(not(feature = "proxy"))]
        let forward = None;
        let target = Target::new(scheme, authority, forward)?;
        let host = Arc::new(Host::new(target, &self.connector, &self.settings));
        hosts.push(Arc::clone(&host));
        Ok(host)
    }
}

impl<B: RequestBody> Service<Request<B>> for Transport<B> {
    type Response = Response<Body>;
    type Error = Error;
    type Future = TransportFuture;

    /// A transport is always ready, because each request waits in its own future.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> TransportFuture {
        TransportFuture(Box::pin(self.send(request)))
    }
}

/// The future of a [`Transport`].
#[must_use = "futures do nothing unless polled"]
pub struct TransportFuture(Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>);

impl Future for TransportFuture {
    type Output = Result<Response<Body>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for TransportFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransportFuture")
    }
}

impl<B: RequestBody> Clone for Transport<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B: RequestBody> fmt::Debug for Transport<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}
