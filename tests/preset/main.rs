//! Tests presets: errors at construction, credentials, default headers, limiters, and the whole stack.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[cfg(feature = "serde")]
mod config;
mod construction;
mod credentials;
mod default_headers;
mod header_capacity;
mod limiter;
#[path = "../support/mod.rs"]
mod support;
mod taken_apart;
mod whole_stack;

use std::{env, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_outbound::{
    ApiKey, Body, BoxError, Client, Error, ExponentialBackoff, Jitter, Quota, Report,
    auth::KeyPlacement,
    body::IdleBody,
    call::{Outcome, StopReason},
    limit::InFlightBody,
    preset,
    retry::RetryLayer,
    stack::StackBuilder,
    test_util::{ScriptedResponse, ScriptedService},
};

use crate::support::server::{Seen, Server, Wire, reply, within};

const KEY: &str = "k3y-of-the-tests";
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn key() -> ApiKey {
    ApiKey::new(KEY).unwrap()
}

fn preset_with_key(base_url: &str) -> StackBuilder {
    preset::currency_rates(base_url).unwrap().with_api_key(key())
}

/// Returns a preset whose retry delays are exactly 100 ms and 200 ms. The quota grants two permits immediately, and
/// then one permit per minute.
fn preset_with_exact_delays() -> StackBuilder {
    let backoff = ExponentialBackoff::new(100 * MILLI, SECOND).unwrap().with_jitter(Jitter::none());
    preset_with_key("https://host")
        .with_quota(Quota::new(3, 3 * MINUTE).unwrap().with_burst(2).unwrap().without_margin())
        .with_retry(RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff))
}

/// Returns a quota that grants two permits immediately, and the third permit after an hour.
fn hourly_quota() -> Quota {
    Quota::new(3, 3 * HOUR).unwrap().with_burst(2).unwrap().without_margin()
}

/// Starts a server on loopback that responds with 200.
async fn server() -> Server {
    Server::with_statuses(Wire::Http1, [200]).await
}

async fn status(client: &Client, path: &str) -> Result<StatusCode, Error> {
    within(client.get(path)).await.map(|response| response.status())
}

fn only_request(server: &Server) -> Seen {
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    seen[0].clone()
}

fn get(uri: &str) -> Request<Empty<Bytes>> {
    Request::get(uri).body(Empty::new()).unwrap()
}

fn ok() -> ScriptedResponse {
    ScriptedResponse::status(200)
}

type Stack = BoxCloneService<Request<Empty<Bytes>>, Response<IdleBody<InFlightBody<Body>>>, Error>;

/// Returns a stack of the preset's layer and a scripted service. The scripted service repeats its last response.
fn stack<const N: usize>(preset: &StackBuilder, script: [ScriptedResponse; N]) -> (Stack, ScriptedService) {
    let service = ScriptedService::new(script);
    let stack = ServiceBuilder::new().layer(preset.layer().unwrap()).service(service.clone());
    (BoxCloneService::new(stack), service)
}

/// Returns, for each request, the time from `start` until the service received the request.
fn arrivals(service: &ScriptedService, start: Instant) -> Vec<Duration> {
    service.seen().iter().map(|seen| seen.at - start).collect()
}
