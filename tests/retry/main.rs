//! Tests the retry layer over a scripted service on tokio's paused clock. The module `transport` tests the retry layer
//! over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod attempts;
mod budget;
mod decide;
mod decision_table;
mod delays;
mod delivery;
mod drain;
mod grpc;
mod idempotency;
mod properties;
mod readiness;
mod request;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "client")]
mod transport;

use std::{
    collections::HashSet,
    convert::Infallible,
    io::ErrorKind::ConnectionReset,
    ops::RangeInclusive,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ErrorKind, ExponentialBackoff, Jitter, Quota, Report,
    body::ReplayBody,
    call::{CallContext, Deadline, DelayReason, KeyReplaced, Outcome, RequestHead, StopReason},
    error::DeliveryError,
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::{
        AttemptResult, Budget, Classify, DefaultClassifier, Grpc, IdempotencyKey, RetryDecision, RetryLayer,
        RetryOverride, RetryRejected,
    },
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

use self::support::{Content, Scripted, ScriptedService, cause, get, millis, secs};

const URI: &str = "https://api.example.com/v1";

/// The names and values of response headers.
type HeaderPairs = &'static [(&'static str, &'static str)];

/// Returns the call report in the response's extensions.
fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().expect("the response should have a report")
}
