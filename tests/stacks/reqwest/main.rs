//! Tests the layers over reqwest, with the failing servers of `tests/retry`. Also tests what reqwest itself does inside
//! the layers, where the layers cannot see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test")]

mod bodies;
mod client_features;
mod failures;
#[path = "../../retry/transport/faults.rs"]
mod faults;
#[path = "../../retry/transport/frames.rs"]
mod frames;
#[path = "../../retry/transport/http2.rs"]
mod http2;
#[allow(dead_code, reason = "the servers of another test binary")]
#[path = "../../error/peer.rs"]
mod peer;
mod preset;
#[allow(dead_code, reason = "this binary uses a part of it")]
#[path = "../../retry/transport/server.rs"]
mod server;
#[path = "../../retry/transport/stack.rs"]
mod stack;

use std::sync::{Arc, Mutex};

use http::{Response, request};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower_outbound::{BoxError, Client, adapter::Reqwest, stack::StackBuilder};

use self::stack::Wire;

/// The service inside the layers.
type Inner = Reqwest;

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy()
}

fn inner(wire: Wire) -> Inner {
    Reqwest::new(match wire {
        Wire::Http1 => builder(),
        Wire::Http2 => builder().http2_prior_knowledge(),
    })
    .unwrap()
}

fn ready_client(preset: &StackBuilder, wire: Wire) -> Client {
    preset.client_with_service(inner(wire)).unwrap()
}

type SiteResponse = Response<UnsyncBoxBody<bytes::Bytes, BoxError>>;

/// A server for HTTP/1 and HTTP/2 that computes each response with a function and records the head of each request.
/// Dropping the value stops the server.
struct Site {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    _accepting: JoinSet<()>,
}

/// The head of a request.
type Seen = request::Parts;

impl Site {
    async fn start<F, W>(respond: F) -> Self
    where
        F: Fn(request::Parts, Incoming) -> W + Clone + Send + Sync + 'static,
        W: Future<Output = SiteResponse> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let recorded = Arc::clone(&seen);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (respond, recorded) = (respond.clone(), Arc::clone(&recorded));
                let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                    let (head, body) = request.into_parts();
                    recorded.lock().unwrap().push(head.clone());
                    let response = respond(head, body);
                    async { Ok::<_, std::convert::Infallible>(response.await) }
                });
                connections.spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url, seen, _accepting: accepting }
    }

    /// Starts a server that redirects every request to `target`.
    async fn redirecting(status: u16, target: String) -> Self {
        Self::start(move |_, _| {
            let response = Response::builder().status(status).header("location", &target);
            async { response.body(empty()).unwrap() }
        })
        .await
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn empty() -> UnsyncBoxBody<bytes::Bytes, BoxError> {
    text("")
}

fn text(text: &'static str) -> UnsyncBoxBody<bytes::Bytes, BoxError> {
    use http_body_util::BodyExt;

    http_body_util::Full::from(text).map_err(Into::into).boxed_unsync()
}

/// Returns the `Display` and `Debug` texts of an error and all of its causes.
fn error_texts(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts = format!("{error:#} {error:?}");
    let mut next = error.source();
    while let Some(cause) = next {
        texts += &format!(" {cause} {cause:?}");
        next = cause.source();
    }
    texts
}
