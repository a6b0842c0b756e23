//! A real hyper server on a free port of loopback, with scripted response and a record of what reached it.

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

type Answering = Pin<Box<dyn Future<Output = Option<Reply>> + Send>>;
type Handler = Arc<dyn Fn(usize, Seen) -> Answering + Send + Sync>;

/// A request as it arrived, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    /// HTTP/2 sends the authority as well: what counts is the same part in both.
    pub(crate) fn path_and_query(&self) -> &str {
        self.uri.path_and_query().unwrap().as_str()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// What the server speaks.
#[derive(Clone)]
pub(crate) enum Wire {
    Http1,
    /// Without TLS, from the first byte.
    Http2,
    #[cfg(feature = "rustls")]
    Tls(tokio_rustls::TlsAcceptor),
}

/// Stops when it is dropped, and cuts its connections.
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
    /// Answers each request, counted from 1, with what `handler` makes of it; with none it hangs up.
    pub(crate) async fn start<F, A>(wire: Wire, handler: F) -> Self
    where
        F: Fn(usize, Seen) -> A + Send + Sync + 'static,
        A: Future<Output = Option<Reply>> + Send + 'static,
    {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), wire, handler)
    }

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

    /// Answers the first request with the first status and so on, and from then on with the last one. The body
    /// says which request it was.
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

    /// Every request that was read whole, oldest first.
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
            handler(number, seen).await.ok_or_else(|| io::Error::other("hangs up"))
        }
    });
    // How a connection ends is the client's to tell.
    let _ = builder.serve_connection(stream, service).await;
}

pub(crate) fn reply(status: u16, body: impl Into<Bytes>) -> Reply {
    with_body(status, Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync())
}

/// Sends data for as long as anybody reads it.
pub(crate) fn endless(status: u16) -> Reply {
    let chunk = Bytes::from(vec![b'x'; 16 * 1024]);
    let frames = stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
    with_body(status, UnsyncBoxBody::new(StreamBody::new(frames)))
}

/// Sends its body piece by piece, so that the head is long there before the end.
pub(crate) fn slow(status: u16) -> Reply {
    let frames = stream::iter(0..3).then(|_| async {
        settle().await;
        Ok(Frame::data(Bytes::from(vec![b'x'; 4 * 1024])))
    });
    with_body(status, UnsyncBoxBody::new(StreamBody::new(frames)))
}

/// Sends one chunk and then nothing, without an end.
pub(crate) fn stalled(status: u16) -> Reply {
    let frames = stream::once(async { Ok(Frame::data(Bytes::from_static(b"a part"))) });
    with_body(status, UnsyncBoxBody::new(StreamBody::new(frames.chain(stream::pending()))))
}

/// Sends one chunk and then cuts the connection.
pub(crate) fn cut_off(status: u16) -> Reply {
    let chunk = stream::once(async { Ok(Frame::data(Bytes::from_static(b"a part"))) });
    let cut = stream::once(async {
        // What was written goes out first.
        settle().await;
        Err(io::Error::other("cut off"))
    });
    with_body(status, UnsyncBoxBody::new(StreamBody::new(chunk.chain(cut))))
}

fn with_body(status: u16, body: UnsyncBoxBody<Bytes, io::Error>) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    reply
}

/// Fails a test that would hang.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("within 60 s")
}

/// Lets the tasks of this thread run until they wait for something: a connection goes back to its pool in a task
/// of hyper's, after the answer was read. No time passes.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
