//! Tests the kind, the text and the source chain of errors, and the redaction of text from the server.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod display;
#[cfg(feature = "rustls")]
mod handshakes;
mod layers;
#[cfg_attr(not(feature = "rustls"), allow(dead_code, reason = "only tests with TLS use `close_at_once`"))]
mod peer;
#[cfg(feature = "rustls")]
mod permanent;
mod processing;
mod redaction;
mod source_chain;
#[path = "../support/mod.rs"]
mod support;
mod transport;

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use bytes::Bytes;
use http::Uri;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::{TcpSocket, TcpStream};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    ApiKey, Body, BoxError, Error, ErrorKind, ExponentialBackoff, Jitter, Quota,
    auth::{AuthLayer, FreshKey, KeySource, RefreshingKey},
    limit::{LocalLimiter, PermitCost, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
};

use self::support::{broken, get, secs};

type Content = UnsyncBoxBody<Bytes, BoxError>;
type Connector = BoxCloneSyncService<Uri, TokioIo<TcpStream>, BoxError>;

/// Returns a retry layer with three attempts and a backoff of 1 ms.
fn quick_retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    let backoff = backoff.with_jitter(Jitter::none());
    RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff)
}

fn preset(url: &str) -> StackBuilder {
    StackBuilder::new(url)
        .unwrap()
        .with_name("svc")
        .with_api_key(ApiKey::new("k3y").unwrap())
        .with_retry(quick_retry())
}

/// Returns a TCP connector without TLS.
fn tcp() -> Connector {
    BoxCloneSyncService::new(HttpConnector::new().map_err(BoxError::from))
}

/// Returns a request body that fails after its first frame.
fn broken_body() -> Content {
    let frames = [Ok(Frame::data(Bytes::from("x"))), Err("the disk is gone".into())];
    StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

fn no_body() -> Content {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Sends a request through a client that uses `connector`, and returns the error.
async fn error_of_client(url: &str, connector: Connector, http2: bool, body: fn() -> Content) -> Error {
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(http2).build(connector);
    let client = preset(url).client_with_service(client).unwrap();
    client.execute(request(url, Body::new(body()))).await.unwrap_err()
}

/// Sends a request through a stack of individual layers around a client that uses `connector`, and returns the error.
async fn error_of_layers(url: &str, connector: Connector, http2: bool, body: fn() -> Content) -> Error {
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(http2).build(connector);
    let service = ServiceBuilder::new().layer(RequestIdLayer::new()).layer(quick_retry()).service(client);
    service.oneshot(request(url, body())).await.unwrap_err()
}

fn request<B>(url: &str, body: B) -> http::Request<B> {
    http::Request::put(format!("{url}/v1")).body(body).unwrap()
}

/// Returns a socket and its address. The address refuses connections, because the socket is bound but does not listen.
fn refusing_address() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}
