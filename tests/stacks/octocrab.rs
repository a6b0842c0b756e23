//! Tests the layers in the builder of octocrab, a GitHub client. A server on loopback records the requests.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use octocrab::{AuthState, Octocrab, OctocrabBuilder, service::middleware::base_uri::BaseUriLayer};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tower::ServiceBuilder;
use tower_outbound::{
    BoxError, ExponentialBackoff, Quota,
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
};

/// The octocrab program that the crate's guide shows.
mod program {
    use http::Uri;
    use hyper_util::{
        client::legacy::{Client, connect::Connect},
        rt::TokioExecutor,
    };
    use octocrab::{AuthState, Octocrab, OctocrabBuilder, service::middleware::base_uri::BaseUriLayer};
    use tower::ServiceBuilder;
    use tower_outbound::{
        BoxError, Quota,
        limit::{LocalLimiter, RateLimitLayer},
        request_id::RequestIdLayer,
        retry::RetryLayer,
    };

    pub fn github<C>(connector: C) -> Result<Octocrab, BoxError>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let stack = ServiceBuilder::new()
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(80)?)))
            .service(Client::builder(TokioExecutor::new()).build(connector));
        let github = OctocrabBuilder::new_empty()
            .with_service(stack)
            .with_layer(&RequestIdLayer::new())
            .with_layer(&BaseUriLayer::new(Uri::from_static("https://api.github.com")))
            .with_auth(AuthState::None)
            .build()?;
        Ok(github)
    }
}

const WINDOW: Duration = Duration::from_millis(500);
/// The margin of the window. Even on a busy machine, a request reaches the server within this time.
const MARGIN: Duration = Duration::from_millis(500);

type Seen = Arc<Mutex<Vec<(Instant, Method, HeaderMap)>>>;

/// Starts a server that sends the scripted responses, and afterwards 200. Each scripted response has a status and an
/// optional `retry-after-ms`. Returns the server's URL and record.
async fn server(script: impl IntoIterator<Item = (u16, Option<&'static str>)>) -> (Uri, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
    let seen = Seen::default();
    let recorded = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, seen) = (Arc::clone(&script), Arc::clone(&recorded));
            let service = service_fn(move |request: Request<Incoming>| {
                let (head, _) = request.into_parts();
                seen.lock().unwrap().push((Instant::now(), head.method, head.headers));
                let (status, delay) = script.lock().unwrap().pop_front().unwrap_or((200, None));
                let mut response = Response::builder().status(status);
                if let Some(delay) = delay {
                    response = response.header("retry-after-ms", delay);
                }
                let response = response.body(Full::new(Bytes::from_static(br#"{"message":"hello"}"#)));
                std::future::ready(response)
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (uri, seen)
}

fn github(uri: Uri, quota: Quota) -> Octocrab {
    let backoff = ExponentialBackoff::new(Duration::from_millis(10), Duration::from_millis(50)).unwrap();
    // The retry layer changes the type of the body, but `with_layer` requires octocrab's body type. The retry layer is
    // therefore part of the service.
    let stack = ServiceBuilder::new()
        .layer(RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff))
        .layer(RateLimitLayer::new(LocalLimiter::sliding_window(quota)))
        .service(Client::builder(TokioExecutor::new()).build_http());
    OctocrabBuilder::new_empty()
        .with_service(stack)
        // Each call of `with_layer` wraps the layers added so far.
        .with_layer(&RequestIdLayer::new())
        .with_layer(&BaseUriLayer::new(uri))
        .with_auth(AuthState::None)
        .build()
        .unwrap()
}

async fn get(github: &Octocrab) -> octocrab::Result<Value> {
    github.get("/zen", None::<&()>).await
}

#[tokio::test]
async fn get_is_retried_after_a_503_but_post_is_not() {
    let (uri, seen) = server([(503, None), (200, None), (503, None)]).await;
    let github = github(uri, Quota::per_second(100).unwrap());
    assert_eq!(get(&github).await.unwrap(), json!({ "message": "hello" }));
    let error = github.post::<_, Value>("/issues", Some(&json!({ "title": "x" }))).await.unwrap_err();
    assert!(matches!(error, octocrab::Error::GitHub { .. }), "{error:?}");
    let seen = seen.lock().unwrap();
    let methods: Vec<_> = seen.iter().map(|(_, method, _)| method.clone()).collect();
    assert_eq!(methods, [Method::GET, Method::GET, Method::POST]);
    let ids: Vec<_> = seen.iter().map(|(_, _, headers)| headers.get("x-request-id").unwrap()).collect();
    assert!(ids[0] == ids[1] && ids[1] != ids[2], "{ids:?}");
}

/// For any host, the connector connects to the test server.
#[tokio::test]
async fn example_program_of_the_guide_retries_after_a_503() -> Result<(), BoxError> {
    let (uri, seen) = server([(503, None)]).await;
    let address = uri.authority().unwrap().to_string();
    let connector = tower::service_fn(move |_: Uri| {
        let stream = TcpStream::connect(address.clone());
        Box::pin(async { stream.await.map(TokioIo::new) })
    });
    let github = program::github(connector)?;
    assert_eq!(get(&github).await?, json!({ "message": "hello" }));
    assert_eq!(seen.lock().unwrap().len(), 2);
    Ok(())
}

#[tokio::test]
async fn post_is_retried_after_the_delay_of_a_429() {
    let (uri, seen) = server([(429, Some("150"))]).await;
    let github = github(uri, Quota::per_second(100).unwrap());
    github.post::<_, Value>("/issues", Some(&json!({ "title": "x" }))).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(seen[1].0 - seen[0].0 >= Duration::from_millis(150), "{:?}", seen[1].0 - seen[0].0);
}

#[tokio::test]
async fn delay_requested_by_a_503_applies_to_the_next_call() {
    let (uri, seen) = server([(503, Some("150"))]).await;
    let github = github(uri, Quota::per_second(100).unwrap());
    github.post::<_, Value>("/issues", Some(&json!({ "title": "x" }))).await.unwrap_err();
    get(&github).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(seen[1].0 - seen[0].0 >= Duration::from_millis(150), "{:?}", seen[1].0 - seen[0].0);
}

#[tokio::test]
async fn no_window_exceeds_the_quota_although_calls_are_retried() {
    let (uri, seen) = server([(503, None), (503, None)]).await;
    let github = github(uri, Quota::new(5, WINDOW).unwrap().with_margin(MARGIN).unwrap());
    let calls = (0..12).map(|_| {
        let github = github.clone();
        tokio::spawn(async move { get(&github).await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 14);
    for six in seen.windows(6) {
        assert!(six[5].0 - six[0].0 >= WINDOW, "{:?}", six[5].0 - six[0].0);
    }
}
