//! Tests the public test kit: scripted services and servers, window assertions and deterministic stacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod contract;
mod deterministic;
mod limit_headers;
mod script;
#[cfg(feature = "client")]
mod server;
#[path = "../support/mod.rs"]
mod support;
mod window;

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::ServiceExt;
use tower_outbound::{Body, BoxError, test_util::ScriptedService};

const URL: &str = "https://api.example.com/v1?key=s3cret";

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn get() -> Request<Full<Bytes>> {
    Request::get(URL).body(Full::from("hello")).unwrap()
}

async fn call(service: &ScriptedService) -> Result<Response<Body>, BoxError> {
    service.clone().oneshot(get()).await
}

/// Returns the message of a panic.
fn panic_message(panic: Box<dyn std::any::Any + Send>) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or(panic.downcast_ref::<&str>().map(|text| text.to_string()))
        .unwrap()
}
