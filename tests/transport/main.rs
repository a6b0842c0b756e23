//! Tests the transport over real sockets: phases, dead connections, HTTP/2 streams, proxies and configuration.
#![cfg(all(feature = "client", feature = "rustls"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod configuration;
mod dead_connections;
#[cfg(feature = "decompression")]
mod decompression;
mod forwarder;
mod http1;
mod idle_timeouts;
#[cfg(feature = "proxy")]
mod phase_times;
mod phases;
#[cfg(feature = "proxy")]
mod proxies;
#[cfg(feature = "proxy")]
mod proxy_and_certificates;
#[cfg(feature = "proxy")]
mod proxy_failures;
#[cfg(feature = "proxy")]
mod proxy_program;
mod returned_requests;
mod runtimes;
mod service;
#[cfg(target_os = "linux")]
mod slow_networks;
mod streams;
#[path = "../support/mod.rs"]
mod support;
#[cfg(target_os = "linux")]
mod tcp_keep_alive;
mod tls;
mod uploads;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future::join_all, stream};
use http::Request;
use http_body_util::{Empty, StreamBody};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Barrier, Notify, Semaphore, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tower::{ServiceExt, service_fn};
use tower_outbound::{
    Body, Client, Error, ErrorKind, ExponentialBackoff, Report,
    body::ReplayBody,
    call::{Outcome, StopReason},
    client::Response,
    limit::LocalLimiter,
    retry::RetryLayer,
    stack::StackBuilder,
    transport::{Transport, TransportConfig},
};

use self::{
    forwarder::Forwarder,
    support::server::{self, Server, Settings, reply, settle, within},
};

/// The response of a server that has processed the request.
const OK: Outcome = Outcome::Response(http::StatusCode::OK);

/// A time limit that is too long to matter, even on a busy machine.
const LONG: Duration = Duration::from_secs(50);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Settings of the server and of the transport for each version of HTTP.
fn versions() -> [(Settings, TransportConfig); 2] {
    [(Settings::default(), TransportConfig::new()), (Settings::http2(), http2())]
}

/// Returns a builder with three attempts, a backoff of at most 5 ms and long timeouts.
fn builder(url: &str) -> StackBuilder {
    let backoff = ExponentialBackoff::new(millis(1), millis(5)).unwrap();
    let retry = RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff);
    Client::builder(url)
        .unwrap()
        .without_credential()
        .with_limiter(LocalLimiter::without_quota())
        .with_retry(retry)
        .with_attempt_timeout(LONG)
        .with_total_timeout(LONG)
}

fn client(url: &str, transport: TransportConfig) -> Client {
    builder(url).client_with_transport(transport).unwrap()
}

fn http2() -> TransportConfig {
    TransportConfig::new().with_http2_prior_knowledge()
}

fn outcomes(report: &Report) -> Vec<Outcome> {
    report.attempts().iter().filter_map(|attempt| attempt.outcome).collect()
}

fn attempts(response: &Response) -> usize {
    response.report().expect("every response has a report").attempt_count()
}

/// Asserts that a call failed, and that each of `count` attempts sent nothing.
#[track_caller]
fn assert_not_sent(error: &Error, kind: ErrorKind, count: usize) {
    let report = error.report().unwrap();
    assert_eq!((error.kind(), outcomes(report)), (kind, vec![Outcome::NotSent; count]), "{error:?}");
}

/// Sends a request and reads the body.
async fn text(call: impl IntoFuture<Output = Result<Response, Error>>) -> String {
    let bytes = call.await.unwrap().bytes().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}
