//! A hyper server on loopback that returns scripted responses, records the requests and counts the connections.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request::Parts};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    rt::{Read, Write},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinSet,
};

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

type ReplyFuture = Pin<Box<dyn Future<Output = io::Result<Reply>> + Send>>;
type Handler = Arc<dyn Fn(usize, Request<Incoming>) -> ReplyFuture + Send + Sync>;

/// A received request with its whole body.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    /// Returns the path and query of the URI, which HTTP/1.1 and HTTP/2 both send. Only HTTP/2 also sends scheme and
    /// authority.
    pub(crate) fn path_and_query(&self) -> &str {
        self.uri.path_and_query().unwrap().as_str()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// The protocol that the server uses.
#[derive(Clone, Default)]
pub(crate) enum Wire {
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge, without TLS.
    Http2,
    /// The version that TLS negotiates.
    #[cfg(feature = "rustls")]
    Tls(tokio_rustls::TlsAcceptor),
}

/// How a [`Server`] serves its connections. The default is HTTP/1.1 without TLS.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) wire: Wire,
    /// The limit of HTTP/2 streams.
    pub(crate) streams: Option<u32>,
    /// The number of requests after which an HTTP/2 connection is closed gracefully, with GOAWAY.
    pub(crate) last_request: Option<usize>,
}

impl Settings {
    pub(crate) fn http2() -> Self {
        Wire::Http2.into()
    }

    pub(crate) fn streams(limit: u32) -> Self {
        Self { streams: Some(limit), ..Self::http2() }
    }
}

impl From<Wire> for Settings {
    fn from(wire: Wire) -> Self {
        Self { wire, ..Self::default() }
    }
}

/// Dropping this value stops the server and closes the server's connections.
pub(crate) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<Log>,
    _accepting: JoinSet<()>,
}

#[derive(Default)]
struct Log {
    connections: AtomicUsize,
    /// The requests whose body was read to its end.
    seen: Mutex<Vec<Seen>>,
    heads: Mutex<Vec<Parts>>,
    arrivals: watch::Sender<usize>,
    /// The requests in progress, until the response headers.
    in_progress: AtomicUsize,
    most_in_progress: AtomicUsize,
}

impl Server {
    /// Calls `handler` with the number of each request, starting at 1, and the request. Sends the reply of `handler`.
    /// `None` closes the connection, or resets the HTTP/2 stream.
    pub(crate) async fn start<F, A>(wire: Wire, handler: F) -> Self
    where
        F: Fn(usize, Seen) -> A + Send + Sync + 'static,
        A: Future<Output = Option<Reply>> + Send + 'static,
    {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), wire, handler)
    }

    /// Serves the connections of `listener`, like [`start`](Self::start).
    pub(crate) fn over<F, A>(listener: TcpListener, wire: Wire, handler: F) -> Self
    where
        F: Fn(usize, Seen) -> A + Send + Sync + 'static,
        A: Future<Output = Option<Reply>> + Send + 'static,
    {
        let (log, handler) = (Arc::<Log>::default(), Arc::new(handler));
        let record = Arc::clone(&log);
        let read_first: Handler = Arc::new(move |_, request| {
            let (log, handler) = (Arc::clone(&record), Arc::clone(&handler));
            Box::pin(async move {
                let (Parts { method, uri, version, headers, .. }, body) = request.into_parts();
                let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                let seen = Seen { method, uri, version, headers, body };
                let number = {
                    let mut all = log.seen.lock().unwrap();
                    all.push(seen.clone());
                    all.len()
                };
                handler(number, seen).await.ok_or_else(|| io::Error::other("closed by the handler"))
            })
        });
        Self::serve(listener, wire.into(), log, read_first)
    }

    /// Calls `handler` with the number of each request, starting at 1, and the request with its unread body.
    pub(crate) async fn raw<F, A>(settings: impl Into<Settings>, handler: F) -> Self
    where
        F: Fn(usize, Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let handler: Handler = Arc::new(move |number, request| {
            let reply = handler(number, request);
            Box::pin(async { Ok(reply.await) })
        });
        Self::serve(listener, settings.into(), Arc::default(), handler)
    }

    fn serve(listener: TcpListener, settings: Settings, log: Arc<Log>, handler: Handler) -> Self {
        let scheme = match settings.wire {
            Wire::Http1 | Wire::Http2 => "http",
            #[cfg(feature = "rustls")]
            Wire::Tls(_) => "https",
        };
        let address = listener.local_addr().unwrap();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, settings, Arc::clone(&log), handler));
        Self { address, scheme, log, _accepting: accepting }
    }

    /// Responds with `statuses` in order, and repeats the last status. The body contains the number of the request.
    pub(crate) async fn with_statuses<const N: usize>(wire: Wire, statuses: [u16; N]) -> Self {
        Self::start(wire, move |number, _| async move {
            Some(reply(statuses[number.min(N) - 1], format!("answer {number}")))
        })
        .await
    }

    /// Responds to every request with the body `ok`, as soon as it has read the request body. hyper's server closes an
    /// HTTP/1.1 connection if it has not received the body when it responds.
    pub(crate) async fn quick(settings: impl Into<Settings>) -> Self {
        Self::raw(settings, |_, request| async {
            let _ = request.into_body().collect().await;
            reply(200, "ok")
        })
        .await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Returns the URL with another host, which must reach the server.
    pub(crate) fn url_of(&self, host: &str) -> String {
        format!("{}://{host}:{}", self.scheme, self.address.port())
    }

    /// Returns the number of connections that were opened.
    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(SeqCst)
    }

    /// Returns the requests whose body was read to its end, oldest first. [`raw`](Self::raw) records no bodies.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.log.seen.lock().unwrap().clone()
    }

    /// Returns the heads of all requests, in order of arrival.
    pub(crate) fn heads(&self) -> Vec<Parts> {
        self.log.heads.lock().unwrap().clone()
    }

    /// Returns the paths of all requests, in order of arrival.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.heads().iter().map(|head| head.uri.path().to_owned()).collect()
    }

    pub(crate) fn requests(&self) -> usize {
        self.log.heads.lock().unwrap().len()
    }

    pub(crate) fn most_in_progress(&self) -> usize {
        self.log.most_in_progress.load(SeqCst)
    }

    /// Waits until the server has received `count` requests.
    pub(crate) async fn received(&self, count: usize) {
        self.log.arrivals.subscribe().wait_for(|arrived| *arrived >= count).await.unwrap();
    }
}

async fn accept(listener: TcpListener, settings: Settings, log: Arc<Log>, handler: Handler) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        log.connections.fetch_add(1, SeqCst);
        connections.spawn(connection(stream, settings.clone(), Arc::clone(&log), Arc::clone(&handler)));
    }
}

async fn connection(stream: TcpStream, settings: Settings, log: Arc<Log>, handler: Handler) {
    stream.set_nodelay(true).unwrap();
    match &settings.wire {
        Wire::Http1 => serve(TokioIo::new(stream), false, settings, log, handler).await,
        Wire::Http2 => serve(TokioIo::new(stream), true, settings, log, handler).await,
        #[cfg(feature = "rustls")]
        Wire::Tls(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                serve(TokioIo::new(stream), is_http2, settings, log, handler).await;
            }
        }
    }
}

async fn serve(
    stream: impl Read + Write + Unpin + Send + 'static,
    is_http2: bool,
    settings: Settings,
    log: Arc<Log>,
    handler: Handler,
) {
    let (is_drained, served) = (Arc::new(Notify::new()), AtomicUsize::new(0));
    let draining = Arc::clone(&is_drained);
    let service = service_fn(move |request: Request<Incoming>| {
        if Some(served.fetch_add(1, SeqCst) + 1) == settings.last_request {
            draining.notify_one();
        }
        let number = log.arrived(&request);
        let (in_progress, reply) = (InProgress::new(&log), handler(number, request));
        async move {
            let reply = reply.await;
            drop(in_progress);
            reply
        }
    });
    // The result is ignored, because the tests assert only what the client observes.
    if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        if let Some(streams) = settings.streams {
            builder.max_concurrent_streams(streams);
        }
        let mut connection = pin!(builder.serve_connection(stream, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            () = is_drained.notified() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    } else {
        let _ = http1::Builder::new().serve_connection(stream, service).with_upgrades().await;
    }
}

impl Log {
    fn arrived(&self, request: &Request<Incoming>) -> usize {
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.version_mut() = request.version();
        *head.headers_mut() = request.headers().clone();
        let mut heads = self.heads.lock().unwrap();
        heads.push(head.into_parts().0);
        self.arrivals.send_replace(heads.len());
        heads.len()
    }
}

struct InProgress(Arc<Log>);

impl InProgress {
    fn new(log: &Arc<Log>) -> Self {
        let now = log.in_progress.fetch_add(1, SeqCst) + 1;
        log.most_in_progress.fetch_max(now, SeqCst);
        Self(Arc::clone(log))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, SeqCst);
    }
}

pub(crate) fn reply(status: u16, body: impl Into<Bytes>) -> Reply {
    with_body(status, Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync())
}

/// Replies with a body that never ends.
pub(crate) fn endless(status: u16) -> Reply {
    let chunk = Bytes::from(vec![b'x'; 16 * 1024]);
    let frames = stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
    with_body(status, UnsyncBoxBody::new(StreamBody::new(frames)))
}

/// Replies with a body in three chunks, so that the client has the response headers long before the end of the body.
pub(crate) fn slow(status: u16) -> Reply {
    let frames = stream::iter(0..3).then(|_| async {
        settle().await;
        Ok(Frame::data(Bytes::from(vec![b'x'; 4 * 1024])))
    });
    with_body(status, UnsyncBoxBody::new(StreamBody::new(frames)))
}

/// Replies with one chunk of a body. The body stalls after that chunk.
pub(crate) fn stalled(status: u16) -> Reply {
    let frames = stream::once(async { Ok(Frame::data(Bytes::from_static(b"a part"))) });
    with_body(status, UnsyncBoxBody::new(StreamBody::new(frames.chain(stream::pending()))))
}

/// Replies with one chunk of a body and then closes the connection.
pub(crate) fn cut_off(status: u16) -> Reply {
    let chunk = stream::once(async { Ok(Frame::data(Bytes::from_static(b"a part"))) });
    let close = stream::once(async {
        // The connection's task must write the chunk before the connection closes.
        settle().await;
        Err(io::Error::other("cut off"))
    });
    with_body(status, UnsyncBoxBody::new(StreamBody::new(chunk.chain(close))))
}

fn with_body(status: u16, body: UnsyncBoxBody<Bytes, io::Error>) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    reply
}

/// Awaits `future`, and panics after 60 s instead of hanging.
pub(crate) async fn within<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("the future should complete within 60 s")
}

/// Runs the other tasks of this thread until they are idle, without advancing the clock. For example, a task of hyper
/// returns a connection to the pool after the response was read.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
