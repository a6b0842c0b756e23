//! Opens a WebSocket through the whole stack, and reopens it after the connection drops.
//!
//! The opening handshake is a call like any other: it sends the key and the request id, waits for its permit, and is
//! retried while the server responds 503 or 429. After the 101 response, tokio-tungstenite uses the connection.
//! `reconnect.rs` determines whether and when to reconnect. The path and the messages are made up, because the service
//! publishes neither.
//!
//! `cargo run --example websocket`. `--help` shows more.

mod reconnect;
mod server;

use std::{cell::Cell, process::ExitCode, time::Duration};

use futures_util::{SinkExt, StreamExt};
use http::{
    Request, StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use reconnect::Reconnect;
use server::{Handshake, Server};
use tokio::time::Instant;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message, Utf8Bytes,
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};
use tower_outbound::{
    ApiKey, Body, BoxError, ExponentialBackoff, Quota, Report, client::Response, preset,
    transport::TransportConfig,
};
use tower_outbound_examples::{no_arguments, run};

const HELP: &str = "\
Opens a WebSocket through the whole stack, sends 9 messages, and reconnects each time the connection drops.

Usage: cargo run --example websocket

  --help  this text

The server on loopback rejects some handshakes and drops two connections. The program takes about 4 seconds.

Exit status: 0, 1 if the program cannot reconnect, 2 for an invalid argument, 130 after Ctrl-C.
";

const KEY: &str = "k3y-of-the-example";
const MESSAGES: usize = 9;

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    let echoed = Cell::new(0);
    run(exchange_all(&echoed), || format!("{} of {MESSAGES} messages came back", echoed.get())).await
}

async fn exchange_all(echoed: &Cell<usize>) -> Result<(), BoxError> {
    let server = Server::start(
        KEY,
        [
            // The server rejects all three attempts of the first call.
            Handshake::Unavailable,
            Handshake::Unavailable,
            Handshake::Unavailable,
            Handshake::Accepted { messages: 3 },
            Handshake::Throttled,
            Handshake::Accepted { messages: 3 },
            Handshake::Accepted { messages: 9 },
        ],
    )
    .await?;
    let messaging = preset::realtime_messaging(server.base_url())?
        .with_api_key(ApiKey::new(KEY)?)
        .with_quota(Quota::per_second(5)?.with_burst(2)?)
        // A TLS server may negotiate HTTP/2, which has no `Upgrade` header.
        .client_with_transport(TransportConfig::new().with_http1_only())?;
    // The delays are shorter than the defaults, so that the example ends soon.
    let backoff = ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(2))?;
    let mut reconnect = Reconnect::new(backoff);

    let start = Instant::now();
    while echoed.get() < MESSAGES {
        let key = generate_key();
        let delay = match messaging.execute(handshake(&key)?).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                println!("         connected, attempts: {}", attempts(&response));
                reconnect.connected();
                if let Err(error) = exchange(accepted(response, &key)?, echoed).await {
                    println!("{:5.2} s  connection lost: {error}", start.elapsed().as_secs_f64());
                }
                Some(reconnect.lost())
            }
            Ok(rejection) => {
                println!("         {}, attempts: {}", rejection.status(), attempts(&rejection));
                reconnect.rejected(&rejection)
            }
            Err(error) => {
                println!("         not connected: {error:#}");
                reconnect.failed(&error)
            }
        };
        if echoed.get() < MESSAGES {
            // `delay` is `None` if reconnecting cannot help, for example because the server rejected the key.
            let delay = delay.ok_or("the failure is permanent")?;
            println!("{:5.2} s  reconnecting in {delay:.0?}", start.elapsed().as_secs_f64());
            tokio::time::sleep(delay).await;
        }
    }
    println!("\n{} messages; the server received {} handshakes:", echoed.get(), server.requests().len());
    for request in server.requests() {
        println!(
            "  {:5.2} s  {}  request id {}",
            (request.at - start).as_secs_f64(),
            request.status,
            request.request_id
        );
    }
    Ok(())
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Builds the request that opens a WebSocket at `/socket`.
fn handshake(key: &str) -> http::Result<Request<Body>> {
    Request::get("/socket")
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, key)
        .body(Body::empty())
}

fn attempts(response: &Response) -> usize {
    response.report().map_or(0, Report::attempt_count)
}

/// Checks that the response's `Sec-WebSocket-Accept` matches the key of the handshake. Returns the upgraded connection.
fn accepted(response: Response, key: &str) -> Result<OnUpgrade, BoxError> {
    let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT);
    if accept.is_none_or(|accept| accept != &derive_accept_key(key.as_bytes())) {
        return Err("Sec-WebSocket-Accept is missing or wrong".into());
    }
    Ok(hyper::upgrade::on(response.into_http()))
}

/// Sends messages and reads their echoes until all messages came back or the connection ends.
async fn exchange(connection: OnUpgrade, echoed: &Cell<usize>) -> Result<(), BoxError> {
    let connection = TokioIo::new(connection.await?);
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    while echoed.get() < MESSAGES {
        socket.send(Message::text(format!("hello {}", echoed.get() + 1))).await?;
        println!("         {}", next_text(&mut socket).await?);
        echoed.set(echoed.get() + 1);
    }
    Ok(socket.close(None).await?)
}

async fn next_text(socket: &mut Socket) -> Result<Utf8Bytes, BoxError> {
    loop {
        match socket.next().await.ok_or("the WebSocket stream has ended")?? {
            Message::Text(text) => return Ok(text),
            // tungstenite replies to pings automatically.
            Message::Ping(_) | Message::Pong(_) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
}
