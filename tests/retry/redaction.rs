//! Tests that `Debug` output contains no request data and no header value.

use std::{
    io::ErrorKind::ConnectionReset,
    sync::{Arc, Mutex},
};

use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt};
use tower_outbound::retry::RetryLayer;

use super::{
    URI,
    support::{Scripted::*, ScriptedService, request},
};

#[tokio::test(start_paused = true)]
async fn debug_output_of_a_call_contains_no_request_head_or_body() {
    let mut request = request("PUT", "https://api.example.com/v1?key=s3cret");
    request.headers_mut().insert("x-key", HeaderValue::from_static("s3cret"));
    *request.body_mut() = Full::from("s3cret");
    let mut service = RetryLayer::new().layer(ScriptedService::new([Status(503)]));
    let mut call = task::spawn(service.call(request));
    assert_pending!(call.poll());
    let debug = format!("{:?} {service:?} {:?}", call, RetryLayer::new());
    assert!(!debug.contains("s3cret"), "{debug}");
    assert!(debug.contains("attempts: 1"), "{debug}");
}

#[tokio::test(start_paused = true)]
async fn debug_output_of_an_attempt_result_contains_no_header_value() {
    let results = Arc::new(Mutex::new(String::new()));
    let recorded = Arc::clone(&results);
    let layer = RetryLayer::new().retry_on([StatusCode::CONFLICT]).retry_if(move |_, attempt| {
        recorded.lock().unwrap().push_str(&format!("{attempt:?}"));
        false
    });
    let layer_debug = format!("{layer:?}");
    let mut request = request("PUT", URI);
    *request.body_mut() = Full::from("s3cret");
    let inner =
        ScriptedService::new([Headers(503, &[("x-key", "s3cret")]), Io(ConnectionReset), Status(200)]);
    layer.layer(inner).oneshot(request).await.unwrap();
    let results = results.lock().unwrap();
    assert!(results.contains("503") && !results.contains("s3cret"), "{results}");
    assert!(layer_debug.contains("409"), "{layer_debug}");
}
