//! A real WebSocket server on loopback that refuses and drops by plan.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        AUTHORIZATION, CONNECTION, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE,
    },
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

/// What comes of a request for a WebSocket.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Opening {
    /// 503.
    Unavailable,
    /// 429 with `Retry-After: 1`.
    Throttled,
    /// 101; each message is sent back, and after so many the connection drops.
    Accepted { messages: usize },
}

/// One request for a WebSocket.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) status: StatusCode,
    pub(crate) request_id: String,
}

/// Ends when it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    key: HeaderValue,
    /// In turn; the last one for ever.
    plan: Vec<Opening>,
    seen: Mutex<Vec<Seen>>,
}

impl Server {
    pub(crate) async fn start(key: &str, plan: impl IntoIterator<Item = Opening>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let key = HeaderValue::try_from(format!("Bearer {key}")).map_err(io::Error::other)?;
        let plan = plan.into_iter().collect();
        let shared = Arc::new(Shared { key, plan, seen: Mutex::default() });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&shared, request);
                async { Ok::<_, Infallible>(response) }
            });
            // It ends in an error whenever the client is gone.
            let _ =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        });
    }
}

fn answer(shared: &Shared, request: Request<Incoming>) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    let headers = response.headers_mut();
    let mut seen = shared.seen();
    let opening = shared.plan.get(seen.len()).or(shared.plan.last()).copied();
    let authorized = request.headers().get(AUTHORIZATION) == Some(&shared.key);
    let key = request.headers().get(SEC_WEBSOCKET_KEY);
    let status = match (opening, key) {
        _ if !authorized => StatusCode::UNAUTHORIZED,
        (Some(Opening::Accepted { messages }), Some(key)) => {
            let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()));
            headers.extend(accept.map(|accept| (SEC_WEBSOCKET_ACCEPT, accept)));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let request_id = request.headers().get("x-request-id").cloned();
            record(&mut seen, StatusCode::SWITCHING_PROTOCOLS, request_id.as_ref());
            tokio::spawn(echo(request, messages));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            return response;
        }
        (Some(Opening::Throttled), _) => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            StatusCode::TOO_MANY_REQUESTS
        }
        (Some(Opening::Unavailable) | None, _) => StatusCode::SERVICE_UNAVAILABLE,
        (Some(Opening::Accepted { .. }), None) => StatusCode::BAD_REQUEST,
    };
    record(&mut seen, status, request.headers().get("x-request-id"));
    *response.status_mut() = status;
    response
}

fn record(seen: &mut Vec<Seen>, status: StatusCode, request_id: Option<&HeaderValue>) {
    let request_id = request_id.and_then(|id| id.to_str().ok()).unwrap_or("none").to_owned();
    seen.push(Seen { at: Instant::now(), status, request_id });
}

/// Sends so many messages back, and drops the connection without a word.
async fn echo(request: Request<Incoming>, messages: usize) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    // As servers do to find out who is gone.
    if socket.send(Message::Ping(Bytes::new())).await.is_err() {
        return;
    }
    let mut left = messages;
    while left > 0 {
        match socket.next().await {
            Some(Ok(message)) if message.is_text() => {
                left -= 1;
                if socket.send(message).await.is_err() {
                    return;
                }
            }
            // The answer to the ping.
            Some(Ok(_)) => {}
            _ => return,
        }
    }
}
