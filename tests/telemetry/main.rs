//! Tests of all log events and spans. The reference for both is the documentation of the module `request_id`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod attempt_events;
mod attempt_header;
mod call_events;
mod filters;
mod layer_order;
mod pools;
mod redaction;
mod reference;
mod refusals;
mod slow_calls;
mod spans;
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    future::{Ready, ready},
    io::ErrorKind::*,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use self::support::{
    Content,
    Scripted::{self, *},
    ScriptedService,
    capture::{self, Capture, Row},
    get, millis, refuse_for_tokens_and_for_requests, request, secs,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_outbound::{
    ApiKey, BoxError, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, FreshKey, KeyPlacement, KeySource, Origin, RefreshingKey},
    limit::{LocalLimiter, RateLimitLayer, ServerSignal},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::{Pool, StackBuilder},
    test_util::ScriptedResponse,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};
use tracing::{Level, Metadata, level_filters::LevelFilter};
use tracing_subscriber::{
    Registry,
    filter::filter_fn,
    layer::{Layer as _, SubscriberExt},
};

const URI: &str = "https://api.example.com/v1";

const CALL: &str = "tower_outbound::call";
const ATTEMPT: &str = "tower_outbound::attempt_span";
const RETRY: &str = "tower_outbound::retry";
const LIMIT: &str = "tower_outbound::limit";

/// Returns the fields as pairs of name and value, sorted by name.
fn pairs(fields: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Sends one request through a stack, and returns its spans and events at `level` and above.
async fn capture_call(level: LevelFilter, script: &[Scripted], method: &str, uri: &str) -> Capture {
    let (capture, _guard) = Capture::at(level);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(TotalTimeoutLayer::new(secs(60)).unwrap())
        .layer(RetryLayer::new())
        .layer(AttemptSpanLayer::new())
        .layer(AttemptTimeoutLayer::new(secs(5)).unwrap())
        .service(ScriptedService::new(script.iter().copied()));
    let _ = service.oneshot(request(method, uri)).await;
    capture
}

fn field_names(event: &capture::Line) -> Vec<&str> {
    event.fields.keys().map(String::as_str).collect()
}

fn sorted<const N: usize>(mut names: [&'static str; N]) -> Vec<&'static str> {
    names.sort_unstable();
    names.to_vec()
}
