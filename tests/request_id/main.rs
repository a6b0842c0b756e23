//! Tests the request id layer. Test services replace the server. `tests/telemetry` tests the log events of a call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod id;
mod report;
mod server_id;
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::HashSet,
    io::ErrorKind::*,
    sync::atomic::{AtomicU64, Ordering},
};

use self::support::{Content, Scripted::*, ScriptedService, get, secs};
use http::{HeaderName, HeaderValue, Request, Response};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Quota, Report,
    call::{CallContext, StopReason},
    limit::{LocalLimiter, RateLimitLayer},
    request_id::{RequestId, RequestIdLayer},
    retry::RetryLayer,
    test_util::ScriptedResponse,
    timeout::TotalTimeoutLayer,
};

const URI: &str = "https://api.example.com/v1";

/// Returns the request id in the header `x-request-id`. Asserts that the header occurs once.
fn id_of(head: &http::request::Parts) -> HeaderValue {
    let mut ids = head.headers.get_all("x-request-id").iter();
    let id = ids.next().expect("the request has an id").clone();
    assert!(ids.next().is_none(), "the request has only one id");
    id
}

fn header(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().expect("the response has a report")
}
