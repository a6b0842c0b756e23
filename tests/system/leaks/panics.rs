//! Tests panics of the inner service. The panic message contains the request, but does not show the key.

use std::convert::Infallible;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_outbound::body::ReplayBody;

use super::*;
use crate::support::{Scripted, ScriptedService, get};

type Request = http::Request<ReplayBody<Full<Bytes>>>;
type CallResult = Result<Response<Full<Bytes>>, Infallible>;

/// Panics in `call`, before it returns a future.
fn panic_in_call(request: Request) -> std::future::Ready<CallResult> {
    panic!("in call: {request:?} {:?}", request.extensions())
}

/// Panics with a message that contains the request without the URI's query. With the key placement `Query`, the query
/// contains the key.
async fn panic_in_future(request: Request) -> CallResult {
    tokio::task::yield_now().await;
    let (head, body) = request.into_parts();
    panic!("{} {:#?} {:?} {body:?}", head.uri.path(), head.headers, head.extensions)
}

#[test]
fn panics_of_the_inner_service_do_not_show_the_key() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            let layer = stack_builder("https://host", placement).layer().unwrap();
            let request = || get("https://host/v1");
            let service = layer.layer(tower::service_fn(panic_in_future));
            check_panic(tokio::spawn(service.oneshot(request()))).await;
            if placement != Placement::Query {
                let service = layer.layer(tower::service_fn(panic_in_call));
                check_panic(tokio::spawn(service.oneshot(request()))).await;
            }
            // The limiter and the retry budget stay usable after calls that share them have panicked.
            let inner = ScriptedService::new([Scripted::Status(200)]);
            let response = layer.layer(inner).oneshot(request()).await.unwrap();
            check_response(&response, response.extensions());
        }
    });
}

async fn check_panic<T: Debug>(task: tokio::task::JoinHandle<T>) {
    let error = task.await.unwrap_err();
    check_error_chain(&error);
    let panic = error.into_panic();
    let text = panic_text(&*panic).unwrap();
    assert!(text.contains("/v1"), "the message does not contain the request: {text}");
    check_text("a panic", text);
}
