//! A hyper server on loopback that counts connections and requests.

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
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    rt::{Read, Write},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

type ReplyFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Handler = Arc<dyn Fn(usize, Request<Incoming>) -> ReplyFuture + Send + Sync>;

/// How a [`Server`] serves its connections. The default is HTTP/1.1 without TLS.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// HTTP/2 with prior knowledge, unless TLS negotiates the version.
    pub(crate) http2: bool,
    /// The limit of HTTP/2 streams.
    pub(crate) streams: Option<u32>,
    /// The number of requests after which a connection is closed gracefully, with GOAWAY.
    pub(crate) last_request: Option<usize>,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Settings {
    pub(crate) fn http2() -> Self {
        Self { http2: true, ..Self::default() }
    }

    pub(crate) fn streams(limit: u32) -> Self {
        Self { streams: Some(limit), ..Self::http2() }
    }

    pub(crate) fn tls(acceptor: TlsAcceptor) -> Self {
        Self { tls: Some(acceptor), ..Self::default() }
    }
}

/// Dropping this value stops the server and closes the server's connections.
pub(crate) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<Log>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    opened: AtomicUsize,
    heads: Mutex<Vec<http::request::Parts>>,
    /// The requests in progress, until the response headers.
    in_progress: AtomicUsize,
    most_in_progress: AtomicUsize,
    arrivals: watch::Sender<usize>,
}

impl Server {
    /// Calls `handler` with the number of each request, starting at 1, and the request.
    pub(crate) async fn start<F, A>(settings: Settings, handler: F) -> Self
    where
        F: Fn(usize, Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let log = Arc::new(Log::default());
        let handler: Handler = Arc::new(move |number, request| Box::pin(handler(number, request)));
        let accepting = tokio::spawn(accept(listener, settings, Arc::clone(&log), handler));
        Self { address, scheme, log, accepting }
    }

    /// Responds to every request as soon as it has read the body. hyper's server closes an HTTP/1.1 connection if it
    /// has not received the body when it responds.
    pub(crate) async fn quick(settings: Settings) -> Self {
        Self::start(settings, |_, request| async {
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
        self.log.opened.load(SeqCst)
    }

    /// Returns the heads of the requests, in order of arrival.
    pub(crate) fn heads(&self) -> Vec<http::request::Parts> {
        self.log.heads.lock().unwrap().clone()
    }

    /// Returns the paths of the requests, in order of arrival.
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

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, settings: Settings, log: Arc<Log>, handler: Handler) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        log.opened.fetch_add(1, SeqCst);
        connections.spawn(connection(stream, settings.clone(), Arc::clone(&log), Arc::clone(&handler)));
    }
}

async fn connection(stream: TcpStream, mut settings: Settings, log: Arc<Log>, handler: Handler) {
    stream.set_nodelay(true).unwrap();
    match settings.tls.take() {
        None => serve(TokioIo::new(stream), settings, log, handler).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                settings.http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                serve(TokioIo::new(stream), settings, log, handler).await;
            }
        }
    }
}

async fn serve(
    stream: impl Read + Write + Unpin + Send + 'static,
    settings: Settings,
    log: Arc<Log>,
    handler: Handler,
) {
    let (is_drained, drain) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let draining = Arc::clone(&is_drained);
    let service = service_fn(move |request: Request<Incoming>| {
        if Some(drain.fetch_add(1, SeqCst) + 1) == settings.last_request {
            draining.notify_one();
        }
        let number = log.arrived(&request);
        let (log, reply) = (InProgress::new(&log), handler(number, request));
        async move {
            let reply = reply.await;
            drop(log);
            Ok::<_, Infallible>(reply)
        }
    });
    // The result is ignored, because the tests assert only what the client observes.
    if settings.http2 {
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
        let mut head = http::request::Builder::new().method(request.method()).uri(request.uri());
        head = head.version(request.version());
        *head.headers_mut().unwrap() = request.headers().clone();
        let mut heads = self.heads.lock().unwrap();
        heads.push(head.body(()).unwrap().into_parts().0);
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
    let body = Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut reply = Response::new(body);
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    reply
}
