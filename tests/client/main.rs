//! Tests the client against real servers on loopback, over HTTP/1.1, HTTP/2 and TLS.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod broken_bodies;
mod calls;
mod framing;
#[cfg(feature = "json")]
mod json;
mod outer_layers;
mod pool;
mod reload;
mod renewals;
mod requests;
mod services;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "rustls")]
mod tls;
mod tokens;
mod uploads;
mod urls;

use std::{
    convert::Infallible,
    error::Error as StdError,
    future::ready,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future::join_all, stream};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tower::{Layer, Service, ServiceExt, layer::layer_fn, limit::GlobalConcurrencyLimitLayer, service_fn};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_outbound::{
    ApiKey, BoxError, Client, Error, ErrorKind, ExponentialBackoff, Jitter, Quota, Report,
    auth::{FreshKey, KeyPlacement, Origin, RefreshingKey},
    call::{Outcome, StopReason},
    client::{RequestBuilder, Response},
    error::DeliveryError,
    limit::{Amounts, AnyLimiter, Dialect, Keyed, LocalLimiter, ServerSignal, Unit},
    preset,
    retry::{IdempotencyKey, RetryLayer, RetryOverride, RetryRejected},
    stack::{Pool, StackBuilder},
    test_util::{Arrivals, ScriptedResponse, ScriptedService, Seen, ServerLimit},
    transport::TransportConfig,
};

use self::support::server::{Reply, Server, Wire, cut_off, endless, reply, settle, slow, stalled, within};

/// The API key of the tests. It must not appear in errors or logs, and must not reach other servers.
const KEY: &str = "k3y-of-the-tests";

/// Returns a retry layer with three attempts and a backoff of at most 5 ms.
fn quick_retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff)
}

/// Returns a preset without a quota, so that no test waits for a permit.
fn preset(base_url: &str) -> StackBuilder {
    preset::realtime_messaging(base_url)
        .unwrap()
        .with_api_key(ApiKey::new(KEY).unwrap())
        .with_retry(quick_retry())
}

fn client(server: &Server) -> Client {
    preset(&server.url()).client().unwrap()
}

fn report(response: &Response) -> &Report {
    response.report().expect("every response has a report")
}

fn outcomes(report: &Report) -> Vec<Outcome> {
    report.attempts().iter().filter_map(|attempt| attempt.outcome).collect()
}

/// The protocol of a server, and a transport that uses it.
fn versions() -> [(Wire, TransportConfig); 2] {
    let http2 = TransportConfig::new().with_http2_prior_knowledge();
    [(Wire::Http1, TransportConfig::new()), (Wire::Http2, http2)]
}

/// Reads the complete response body.
async fn text(response: Response) -> Bytes {
    response.bytes().await.unwrap()
}

/// Reads the response body, so that the connection returns to the pool. Returns the status.
async fn status(call: impl IntoFuture<Output = Result<Response, Error>>) -> StatusCode {
    let response = call.await.unwrap();
    let status = response.status();
    text(response).await;
    status
}

/// Returns the `Display` and `Debug` text of an error and of all its sources.
fn chain(error: &dyn StdError) -> String {
    let mut shown = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        shown.push_str(&format!(": {error} {error:?}"));
        cause = error.source();
    }
    shown
}
