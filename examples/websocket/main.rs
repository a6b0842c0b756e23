//! Opens a WebSocket through the whole stack, and reopens it after the connection drops.
//!
//! The opening request is a call: it carries the key and the request id, waits for its permit, and is retried while the
//! server rejects it. tokio-tungstenite uses the connection of the 101 response. `reconnect.rs` decides whether and
//! when to open it again. The path and the messages are made up, because the service does not publish them.
//!
//! `cargo run --example websocket`. `--help` shows more.

mod reconnect;
mod server;

use std::{cell::Cell, process::ExitCode, time::Duration};

use futures_util::{SinkExt, StreamExt};
use http::{
    Request, Response, StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use reconnect::Reconnect;
use server::{Opening, Server};
use tokio::time::Instant;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message, Utf8Bytes,
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};
use tower_outbound::{ApiKey, Body, BoxError, ExponentialBackoff, Quota, Report, client::Transport, preset};
use tower_outbound_examples::{no_arguments, run};

const HELP: &str = "\
Opens a WebSocket through the whole stack, sends 9 messages, and reconnects each time the connection drops.

Usage: cargo run --example websocket

  --help  this text

The server is on loopback: it rejects some openings and drops two connections. It takes about 4 seconds.

Exit status: 0, 1 if a connection cannot be opened again, 2 for a wrong argument, 130 after Ctrl-C.
";

const KEY: &str = "k3y-of-the-example";
const MESSAGES: usize = 9;

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    let heard = Cell::new(0);
    run(converse(&heard), || format!("{} of {MESSAGES} messages came back", heard.get())).await
}

async fn converse(heard: &Cell<usize>) -> Result<(), BoxError> {
    let server = Server::start(
        KEY,
        [
            // For longer than one call tries.
            Opening::Unavailable,
            Opening::Unavailable,
            Opening::Unavailable,
            Opening::Accepted { messages: 3 },
            Opening::Throttled,
            Opening::Accepted { messages: 3 },
            Opening::Accepted { messages: 9 },
        ],
    )
    .await?;
    let messaging = preset::realtime_messaging(&server.base_url())?
        .with_api_key(ApiKey::new(KEY)?)
        .with_quota(Quota::per_second(5)?.with_burst(2)?)
        // Over TLS a server may choose HTTP/2, which has no upgrade.
        .client_with_transport(Transport::new().with_http1_only())?;
    // Shorter than the defaults, for nobody waits for an example.
    let backoff = ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(2))?;
    let mut reconnect = Reconnect::new(backoff);

    let start = Instant::now();
    while heard.get() < MESSAGES {
        let key = generate_key();
        let again = match messaging.request(opening(&key)?).await {
            Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                println!("         open, after {} attempts", attempts(&answer));
                reconnect.connected();
                if let Err(error) = talk(accepted(answer, &key)?, heard).await {
                    println!("{:5.2} s  lost: {error}", start.elapsed().as_secs_f64());
                }
                Some(reconnect.lost())
            }
            Ok(refusal) => {
                println!("         {} after {} attempts", refusal.status(), attempts(&refusal));
                reconnect.refused(&refusal)
            }
            Err(error) => {
                println!("         not opened: {error:#}");
                reconnect.failed(&error)
            }
        };
        if heard.get() < MESSAGES {
            // A key that is refused, say, is refused again.
            let wait = again.ok_or("not to be opened by asking again")?;
            println!("{:5.2} s  back in {wait:.0?}", start.elapsed().as_secs_f64());
            tokio::time::sleep(wait).await;
        }
    }
    println!("\n{} messages; the server saw {} openings:", heard.get(), server.seen().len());
    for seen in server.seen() {
        println!(
            "  {:5.2} s  {}  request id {}",
            (seen.at - start).as_secs_f64(),
            seen.status,
            seen.request_id
        );
    }
    Ok(())
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Asks for the WebSocket at `/socket`.
fn opening(key: &str) -> http::Result<Request<Body>> {
    Request::get("/socket")
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, key)
        .body(Body::empty())
}

fn attempts(answer: &Response<Body>) -> usize {
    Report::from_response(answer).map_or(0, Report::attempt_count)
}

/// The connection to come, when the server has accepted this key.
fn accepted(answer: Response<Body>, key: &str) -> Result<OnUpgrade, BoxError> {
    let accept = answer.headers().get(SEC_WEBSOCKET_ACCEPT);
    if accept.is_none_or(|accept| accept != &derive_accept_key(key.as_bytes())) {
        return Err("the server has not accepted this key".into());
    }
    Ok(hyper::upgrade::on(answer))
}

/// Until the connection ends, or enough was heard.
async fn talk(connection: OnUpgrade, heard: &Cell<usize>) -> Result<(), BoxError> {
    let connection = TokioIo::new(connection.await?);
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    while heard.get() < MESSAGES {
        socket.send(Message::text(format!("hello {}", heard.get() + 1))).await?;
        println!("         {}", next_text(&mut socket).await?);
        heard.set(heard.get() + 1);
    }
    Ok(socket.close(None).await?)
}

async fn next_text(socket: &mut Socket) -> Result<Utf8Bytes, BoxError> {
    loop {
        match socket.next().await.ok_or("the stream has ended")?? {
            Message::Text(text) => return Ok(text),
            // tungstenite answers a ping by itself.
            Message::Ping(_) | Message::Pong(_) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
}
