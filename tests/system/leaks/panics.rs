//! A service under the layers that panics with all that it was given.

use std::convert::Infallible;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_outbound::body::ReplayBody;

use super::{probe::get, *};

type Request = http::Request<ReplayBody<Full<Bytes>>>;
type Answer = Result<Response<Full<Bytes>>, Infallible>;

/// In `call` and not in its future.
fn at_once(request: Request) -> std::future::Ready<Answer> {
    panic!("at once: {request:?} {:?}", request.extensions())
}

async fn later(request: Request) -> Answer {
    tokio::task::yield_now().await;
    panic!("later: {request:#?} {:#?}", request.extensions())
}

/// The URI of a request whose key is in its query is not for showing, as the manual says.
async fn but_for_the_uri(request: Request) -> Answer {
    tokio::task::yield_now().await;
    let (head, body) = request.into_parts();
    panic!("{} {:?} {:?} {body:?}", head.uri.path(), head.headers, head.extensions)
}

#[test]
fn of_the_inner_service() {
    live(async {
        for place in PLACES {
            let layer = preset("https://host", place).layer().unwrap();
            let call = get("https://host/v1");
            if place == Place::Query {
                told(tokio::spawn(layer.layer(tower::service_fn(but_for_the_uri)).oneshot(call))).await;
            } else {
                told(tokio::spawn(layer.layer(tower::service_fn(later)).oneshot(call))).await;
                let call = get("https://host/v1");
                told(tokio::spawn(layer.layer(tower::service_fn(at_once)).oneshot(call))).await;
            }
            // The layers, which share a limiter and a budget with the call that panicked, still work.
            let probe = probe::ScriptedService::new([probe::Scripted::Status(200)]);
            ended(&layer.layer(probe).oneshot(get("https://host/v1")).await);
        }
    });
}

async fn told<T: Debug>(task: tokio::task::JoinHandle<T>) {
    let error = task.await.unwrap_err();
    chain(&error);
    let panic = error.into_panic();
    let text = text_of(&*panic).unwrap();
    assert!(text.contains("/v1"), "it has told of the request: {text}");
    search("a panic", text);
}
