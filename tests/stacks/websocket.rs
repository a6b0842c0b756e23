//! Tests WebSockets of tokio-tungstenite that are opened through the whole stack.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../examples/websocket/reconnect.rs"]
mod reconnect;
#[path = "../../examples/websocket/server.rs"]
mod server;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::{
    Request, StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use program::messaging;
use reconnect::Reconnect;
use server::{Handshake, Server};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error as WsError, Message, handshake::client::generate_key},
};
use tower_outbound::{
    ApiKey, Body, Client, ExponentialBackoff, Quota, client::Response, preset, stack::StackBuilder,
};

const KEY: &str = "k3y";

mod program {
    use http::StatusCode;
    use hyper::upgrade::Upgraded;
    use hyper_util::rt::TokioIo;
    use tokio_tungstenite::{
        WebSocketStream,
        tungstenite::{
            handshake::{client::generate_key, derive_accept_key},
            protocol::Role,
        },
    };
    use tower_outbound::{ApiKey, BoxError, Client, InvalidConfig, Quota, transport::TransportConfig};

    pub fn messaging(base_url: &str, key: ApiKey) -> Result<Client, InvalidConfig> {
        // HTTP/2, which TLS may negotiate, has no upgrade.
        let transport = TransportConfig::new().with_http1_only();
        let builder = Client::builder(base_url)?.with_api_key(key).with_quota(Quota::per_second(5)?);
        builder.client_with_transport(transport)
    }

    pub async fn open(client: &Client, path: &str) -> Result<WebSocketStream<TokioIo<Upgraded>>, BoxError> {
        let key = generate_key();
        let handshake = client.get(path).header("connection", "upgrade").header("upgrade", "websocket");
        let handshake = handshake.header("sec-websocket-version", "13").header("sec-websocket-key", &key);
        let response = handshake.await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(format!("the server rejected the handshake: {}", response.status()).into());
        }
        let accept = response.headers().get("sec-websocket-accept");
        if accept.is_none_or(|accept| accept != &derive_accept_key(key.as_bytes())) {
            return Err("Sec-WebSocket-Accept is missing or wrong".into());
        }
        let connection = TokioIo::new(hyper::upgrade::on(response.into_http()).await?);
        Ok(WebSocketStream::from_raw_socket(connection, Role::Client, None).await)
    }
}

async fn start(openings: impl IntoIterator<Item = Handshake>) -> (Server, StackBuilder) {
    let server = Server::start(KEY, openings).await.unwrap();
    let preset = preset::realtime_messaging(server.base_url()).unwrap();
    let preset = preset.with_api_key(ApiKey::new(KEY).unwrap());
    (server, preset)
}

async fn request_upgrade(client: &Client) -> Response {
    let key = generate_key();
    let request = Request::get("/socket")
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key)
        .body(Body::empty());
    timeout(Duration::from_secs(20), client.execute(request.unwrap())).await.unwrap().unwrap()
}

async fn open(client: &Client) -> WebSocketStream<TokioIo<Upgraded>> {
    timeout(Duration::from_secs(20), program::open(client, "/socket")).await.unwrap().unwrap()
}

/// Receives the next WebSocket message that is not a ping.
async fn receive(socket: &mut WebSocketStream<TokioIo<Upgraded>>) -> Option<Result<Message, WsError>> {
    loop {
        let next = socket.next().await;
        if !matches!(next, Some(Ok(Message::Ping(_)))) {
            return next;
        }
    }
}

#[tokio::test]
async fn websocket_opens_after_two_failed_handshakes_and_echoes_messages() {
    let (server, _) =
        start([Handshake::Unavailable, Handshake::Throttled, Handshake::Accepted { messages: 2 }]).await;
    let client = messaging(&server.base_url(), ApiKey::new(KEY).unwrap()).unwrap();
    let mut socket = open(&client).await;
    let long = "a".repeat(1 << 20);
    for text in ["hello", &long] {
        socket.send(Message::text(text)).await.unwrap();
        assert_eq!(receive(&mut socket).await.unwrap().unwrap(), Message::text(text));
    }
    let seen = server.requests();
    let statuses: Vec<_> = seen.iter().map(|seen| seen.status.as_u16()).collect();
    assert_eq!(statuses, [503, 429, 101]);
    assert!(
        seen[2].at - seen[1].at >= Duration::from_secs(1),
        "the handshake was retried before the `Retry-After` had passed"
    );
    assert!(
        seen[0].request_id.len() == 36 && seen.iter().all(|request| request.request_id == seen[0].request_id)
    );
}

#[tokio::test]
async fn client_reconnects_after_a_backoff_if_the_connection_drops() {
    let (server, preset) = start([Handshake::Accepted { messages: 1 }]).await;
    let client = preset.client().unwrap();
    let backoff = ExponentialBackoff::new(Duration::from_millis(40), Duration::from_millis(80)).unwrap();
    let mut reconnect = Reconnect::new(backoff);
    for _ in 0..3 {
        let mut socket = open(&client).await;
        reconnect.connected();
        socket.send(Message::text("hello")).await.unwrap();
        assert!(receive(&mut socket).await.unwrap().is_ok());
        // The server drops the connection without a close frame.
        assert!(socket.next().await.is_none_or(|message| message.is_err()));
        tokio::time::sleep(reconnect.lost()).await;
    }
    let seen = server.requests();
    for (earlier, later, least) in [(0, 1, 20), (1, 2, 40)] {
        assert!(seen[later].at - seen[earlier].at >= Duration::from_millis(least));
    }
}

/// The call's deadline is too short for the delay that the 429 requests, so the call returns the 429. The reconnect
/// loop waits for that delay.
#[tokio::test]
async fn reconnect_waits_for_the_requested_delay_even_beyond_the_deadline() {
    let (server, preset) = start([Handshake::Throttled]).await;
    // The timeout is shorter than the requested delay of 1 s, but long enough for a busy machine.
    let client = preset.clone().with_total_timeout(Duration::from_millis(900)).client().unwrap();
    let start = Instant::now();
    let throttled = request_upgrade(&client).await;
    assert_eq!((throttled.status(), server.requests().len()), (StatusCode::TOO_MANY_REQUESTS, 1));
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(2)).unwrap();
    let mut reconnect = Reconnect::new(backoff);
    let wait = reconnect.rejected(&throttled).unwrap();
    assert!(wait >= Duration::from_secs(1), "{wait:?}");
    // The 429 also paused the limiter. The limiter's error carries the remaining wait.
    let request = Request::get("/socket").body(Body::empty()).unwrap();
    let client = preset.with_total_timeout(Duration::from_millis(50)).client().unwrap();
    let error = client.execute(request).await.unwrap_err();
    let left = error.retry_after().unwrap();
    assert!(left + start.elapsed() >= Duration::from_secs(1), "{left:?}");
    assert!(reconnect.failed(&error).unwrap() >= left, "{left:?}");
}

#[tokio::test]
async fn handshake_with_a_wrong_key_is_not_retried_and_each_handshake_takes_a_permit() {
    let (server, preset) = start([Handshake::Accepted { messages: 1 }]).await;
    let preset = preset.with_quota(Quota::new(1, Duration::from_millis(200)).unwrap());
    let wrong = preset.clone().with_api_key(ApiKey::new("wrong").unwrap()).client().unwrap();
    let error = program::open(&wrong, "/socket").await.unwrap_err();
    assert_eq!(error.to_string(), "the server rejected the handshake: 401 Unauthorized");
    let unauthorized = request_upgrade(&wrong).await;
    assert_eq!(unauthorized.report().unwrap().attempt_count(), 1);
    assert_eq!(Reconnect::new(ExponentialBackoff::throttled()).rejected(&unauthorized), None);

    let (client, start) = (preset.client().unwrap(), Instant::now());
    for _ in 0..3 {
        open(&client).await;
    }
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
    assert_eq!(server.requests().len(), 5);
}
