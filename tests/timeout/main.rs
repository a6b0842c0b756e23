//! Tests of the timeout layers, on tokio's paused clock. Test services replace the server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod body_idle;
mod layer;
mod per_attempt;
mod report;
#[path = "../support/mod.rs"]
mod support;
mod total;
mod upload;

use std::{convert::Infallible, error::Error as _, future::pending, time::Duration};

use self::support::{Content, Scripted::*, ScriptedService, get, millis, secs};
use bytes::Bytes;
use futures_util::TryFutureExt as _;
use http::{Request, Response, request::Parts};
use http_body_util::Full;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, layer::layer_fn, service_fn};
use tower_outbound::{
    Error, Quota, Report,
    auth::{BoxSignFuture, Sign},
    call::{CallContext, Deadline, Outcome, StopReason},
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
    timeout::{
        AttemptTimeoutLayer, AttemptTimeoutOverride, BodyIdleTimeoutLayer, TotalTimeout, TotalTimeoutLayer,
    },
};

const URI: &str = "https://api.example.com/v1";

fn total(limit: Duration) -> TotalTimeoutLayer {
    TotalTimeoutLayer::new(limit).unwrap()
}

fn per_attempt(limit: Duration) -> AttemptTimeoutLayer {
    AttemptTimeoutLayer::new(limit).unwrap()
}
