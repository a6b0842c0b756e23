//! A hyper server on loopback that returns scripted responses and records the requests.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    rt::{Read, Write},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

type ReplyFuture = Pin<Box<dyn Future<Output = Option<Reply>> + Send>>;
type Handler = Arc<dyn Fn(usize, Seen) -> ReplyFuture + Send + Sync>;

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
#[derive(Clone)]
pub(crate) enum Wire {
    Http1,
    /// HTTP/2 with prior knowledge, without TLS.
    Http2,
    #[cfg(feature = "rustls")]
    Tls(tokio_rustls::TlsAcceptor),
}

/// Dropping this value stops the server and closes the server's connections.
pub(crate) struct Server {
    url: String,
    log: Arc<Log>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    connections: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
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
        let scheme = match wire {
            Wire::Http1 | Wire::Http2 => "http",
            #[cfg(feature = "rustls")]
            Wire::Tls(_) => "https",
        };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let handler: Handler = Arc::new(move |number, seen| Box::pin(handler(number, seen)));
        let log = Arc::new(Log::default());
        let accepting = tokio::spawn(accept(listener, wire, Arc::clone(&log), handler));
        Self { url, log, accepting }
    }

    /// Responds with `statuses` in order, and repeats the last status. The body contains the number of the request.
    pub(crate) async fn with_statuses<const N: usize>(wire: Wire, statuses: [u16; N]) -> Self {
        Self::start(wire, move |number, _| async move {
            Some(reply(statuses[number.min(N) - 1], format!("answer {number}")))
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(Ordering::SeqCst)
    }

    /// Returns the requests whose body was read to its end, oldest first.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.log.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, wire: Wire, log: Arc<Log>, handler: Handler) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        log.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(connection(stream, wire.clone(), Arc::clone(&log), Arc::clone(&handler)));
    }
}

async fn connection(stream: TcpStream, wire: Wire, log: Arc<Log>, handler: Handler) {
    stream.set_nodelay(true).unwrap();
    let builder = auto::Builder::new(TokioExecutor::new());
    match wire {
        Wire::Http1 => serve(builder.http1_only(), TokioIo::new(stream), log, handler).await,
        Wire::Http2 => serve(builder.http2_only(), TokioIo::new(stream), log, handler).await,
        #[cfg(feature = "rustls")]
        Wire::Tls(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(builder, TokioIo::new(stream), log, handler).await;
            }
        }
    }
}

async fn serve(
    builder: auto::Builder<TokioExecutor>,
    stream: impl Read + Write + Unpin + Send + 'static,
    log: Arc<Log>,
    handler: Handler,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (log, handler) = (Arc::clone(&log), Arc::clone(&handler));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let seen = Seen {
                method: head.method,
                uri: head.uri,
                version: head.version,
                headers: head.headers,
                body,
            };
            let number = {
                let mut all = log.seen.lock().unwrap();
                all.push(seen.clone());
                all.len()
            };
            handler(number, seen).await.ok_or_else(|| io::Error::other("closed by the handler"))
        }
    });
    // The result is ignored, because the tests assert only what the client observes.
    let _ = builder.serve_connection(stream, service).await;
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
