//! Runs a WebSocket server on loopback that rejects handshakes and drops connections in a configured order.

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

/// The server's response to a handshake.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Handshake {
    /// Rejects the handshake with status 503.
    Unavailable,
    /// Rejects the handshake with status 429 and `Retry-After: 1`.
    Throttled,
    /// Accepts the handshake with status 101. The server echoes this number of messages and drops the connection.
    Accepted { messages: usize },
}

/// A handshake that the server received.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) at: Instant,
    pub(crate) status: StatusCode,
    pub(crate) request_id: String,
}

/// A running server. The server accepts no more connections after this value is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    key: HeaderValue,
    /// The responses to the handshakes, in order. The last response applies to all later handshakes.
    handshakes: Vec<Handshake>,
    requests: Mutex<Vec<ReceivedRequest>>,
}

impl Server {
    pub(crate) async fn start(
        key: &str,
        handshakes: impl IntoIterator<Item = Handshake>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let key = HeaderValue::try_from(format!("Bearer {key}")).map_err(io::Error::other)?;
        let handshakes = handshakes.into_iter().collect();
        let shared = Arc::new(Shared { key, handshakes, requests: Mutex::default() });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the handshakes that have arrived so far.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, Vec<ReceivedRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = respond(&shared, request);
                async { Ok::<_, Infallible>(response) }
            });
            // If the client disconnects, the connection ends with an error.
            let _ =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        });
    }
}

fn respond(shared: &Shared, request: Request<Incoming>) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    let headers = response.headers_mut();
    let mut requests = shared.requests();
    let handshake = shared.handshakes.get(requests.len()).or(shared.handshakes.last()).copied();
    let authorized = request.headers().get(AUTHORIZATION) == Some(&shared.key);
    let key = request.headers().get(SEC_WEBSOCKET_KEY);
    let status = match (handshake, key) {
        _ if !authorized => StatusCode::UNAUTHORIZED,
        (Some(Handshake::Accepted { messages }), Some(key)) => {
            let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()));
            headers.extend(accept.map(|accept| (SEC_WEBSOCKET_ACCEPT, accept)));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let request_id = request.headers().get("x-request-id").cloned();
            record(&mut requests, StatusCode::SWITCHING_PROTOCOLS, request_id.as_ref());
            tokio::spawn(echo(request, messages));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            return response;
        }
        (Some(Handshake::Throttled), _) => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            StatusCode::TOO_MANY_REQUESTS
        }
        (Some(Handshake::Unavailable) | None, _) => StatusCode::SERVICE_UNAVAILABLE,
        (Some(Handshake::Accepted { .. }), None) => StatusCode::BAD_REQUEST,
    };
    record(&mut requests, status, request.headers().get("x-request-id"));
    *response.status_mut() = status;
    response
}

fn record(requests: &mut Vec<ReceivedRequest>, status: StatusCode, request_id: Option<&HeaderValue>) {
    let request_id = request_id.and_then(|id| id.to_str().ok()).unwrap_or("none").to_owned();
    requests.push(ReceivedRequest { at: Instant::now(), status, request_id });
}

/// Echoes the given number of messages, and drops the connection without a close frame.
async fn echo(request: Request<Incoming>, messages: usize) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    // The server sends a ping, as real servers do to detect dead connections.
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
            // The client's next message is the pong.
            Some(Ok(_)) => {}
            _ => return,
        }
    }
}
