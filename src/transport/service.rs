use std::{
    fmt, mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use http::{Extensions, Request, Response, Version};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    config::TransportConfig,
    connect::Connector,
    connection::RequestBody,
    lease::{Lease, Sent, Waiting},
    origin::Target,
    pool::{Host, Lookup},
};
use crate::{
    body::{Body, ReplayBody},
    call::CallContext,
    clock::{self, Instant},
    error::{Error, take_once},
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
/// [`retry`](crate::retry) layer retries every method if it was not. A URI with user info is an invalid request.
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
    config: Arc<TransportConfig>,
    /// The origins. A client has only one.
    hosts: Mutex<Vec<Arc<Host<B>>>>,
}

impl<B: RequestBody> Transport<B> {
    pub(super) fn new(connector: Connector, config: TransportConfig) -> Self {
        let (connector, config) = (Arc::new(connector), Arc::new(config));
        Self { inner: Arc::new(Inner { connector, config, hosts: Mutex::default() }) }
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
        // Nothing would authenticate with it, and a proxy would see it.
        if authority.as_str().contains('@') {
            return Err(Error::invalid_request("the uri of a request must not contain user info"));
        }
        if let Some(host) = hosts.iter().find(|host| host.target.is_same(scheme, authority)) {
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
        let host = Arc::new(Host::new(target, &self.connector, &self.config));
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
        f.debug_struct("Transport").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

pin_project! {
    /// Waits for a connection, and sends a request on it.
    ///
    /// Written by hand, because an `async` block would store the request three times, 760 bytes in all. The client boxes
    /// this future, and a smaller box costs less.
    struct Sending<B: RequestBody, F, S> {
        // The error is `None` after it was returned.
        host: Result<Arc<Host<B>>, Option<Error>>,
        call: Option<CallContext>,
        // The number of the attempt, for the call.
        attempt: u32,
        // Hands a request to a connection.
        send: S,
        // Whether a new connection has returned the request.
        returned_by_new: bool,
        #[pin]
        stage: Stage<B, F>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<B: RequestBody, F> {
        Finding { request: Option<Request<B>>, is_returned: bool },
        Waiting { request: Option<Request<B>>, waiting: Waiting<B> },
        // The request has waited for this connection, or in a connection that returned it. Its permit may have expired.
        Renewing { request: Option<Request<B>>, lease: Option<Lease<B>> },
        // `emptied` is the map of the request's extensions, without a value.
        Sent { #[pin] response: F, lease: Option<Lease<B>>, emptied: Extensions },
    }
}

impl<B, F, S> Sending<B, F, S>
where
    B: RequestBody,
    S: FnMut(&mut Lease<B>, Request<B>, Option<CallContext>, Instant) -> F,
{
    fn new(host: Result<Arc<Host<B>>, Error>, request: Request<B>, send: S) -> Self {
        let call = request.extensions().get::<CallContext>().cloned();
        let attempt = call.as_ref().map_or(0, CallContext::take_request);
        let stage = Stage::Finding { request: Some(request), is_returned: false };
        let host = host.map_err(Some);
        Self { host, call, attempt, send, returned_by_new: false, stage }
    }
}

impl<B, F, S> Future for Sending<B, F, S>
where
    B: RequestBody,
    F: Future<Output = Sent<B>>,
    S: FnMut(&mut Lease<B>, Request<B>, Option<CallContext>, Instant) -> F,
{
    type Output = Result<Response<Body>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call.as_ref();
        let host = match this.host {
            Ok(host) => &*host,
            Err(error) => return Poll::Ready(Err(take_once(error))),
        };
        loop {
            // A connection for the request, and the time.
            let (mut request, mut lease, now) = match this.stage.as_mut().project() {
                StageProj::Finding { request, is_returned } => {
                    let now = clock::now();
                    match host.find(now, call) {
                        Lookup::Found(connection) => {
                            let lease = Lease::new(host, connection);
                            if *is_returned {
                                let (request, lease) = (request.take(), Some(lease));
                                this.stage.set(Stage::Renewing { request, lease });
                                continue;
                            }
                            (take_once(request), lease, now)
                        }
                        Lookup::Wait(granted) => {
                            let waiting = Waiting::new(host, granted, call.cloned(), now);
                            let request = request.take();
                            this.stage.set(Stage::Waiting { request, waiting });
                            continue;
                        }
                    }
                }
                StageProj::Waiting { request, waiting } => {
                    let granted = ready!(Pin::new(&mut *waiting).poll(cx));
                    if let Some(call) = call {
                        // The attempt timeout no longer counts the time as that of a connection.
                        call.wait(false);
                    }
                    let (request, lease) = match granted {
                        Ok(lease) => (request.take(), Some(lease)),
                        Err(error) => return Poll::Ready(Err(Error::from_service(error))),
                    };
                    this.stage.set(Stage::Renewing { request, lease });
                    continue;
                }
                StageProj::Renewing { request, lease } => {
                    if let (Some(call), Some(request)) = (call, &request) {
                        ready!(call.poll_renewed(request, cx));
                    }
                    (take_once(request), take_once(lease), clock::now())
                }
                StageProj::Sent { response, lease, emptied } => {
                    let mut sent = ready!(response.poll(cx));
                    let mut lease = take_once(lease);
                    lease.responded(&sent);
                    // The layers add values to the extensions of a response, and need no new map for them.
                    if let Ok(response) = &mut sent {
                        if response.extensions().is_empty() {
                            *response.extensions_mut() = mem::take(emptied);
                        }
                    }
                    let (error, returned) = match sent {
                        Ok(response) => return Poll::Ready(Ok(response.map(|body| lease.attach(body)))),
                        Err(failed) => failed,
                    };
                    let Some(returned) = returned else {
                        return Poll::Ready(Err(Error::from_service(error)));
                    };
                    // The connection ended before hyper began the request.
                    lease.retire();
                    // A server that closes every new connection must not cause an endless loop.
                    if !lease.is_reused() && mem::replace(this.returned_by_new, true) {
                        return Poll::Ready(Err(Error::returned(error)));
                    }
                    if let Some(call) = call {
                        call.returned(*this.attempt);
                    }
                    this.stage.set(Stage::Finding { request: Some(returned), is_returned: true });
                    // The rate limit layer watches only a request that it has seen unsent and pending.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            if let Err(error) = host.target.write_head(&mut request, lease.is_http2()) {
                return Poll::Ready(Err(error));
            }
            if call.is_some_and(|call| !call.send(*this.attempt, now)) {
                return Poll::Ready(Err(Error::abandoned()));
            }
            // hyper reads extensions of other layers, but not the call.
            let has_others = request.extensions().len() > usize::from(call.is_some());
            let mut emptied =
                if has_others { Extensions::new() } else { mem::take(request.extensions_mut()) };
            emptied.clear();
            let response = (this.send)(&mut lease, request, call.cloned(), now);
            this.stage.set(Stage::Sent { response, lease: Some(lease), emptied });
        }
    }
}
