//! Tests a preset over a single connection of hyper, without hyper-util's client and connection pool.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    ApiKey, ExponentialBackoff, Report,
    body::ReplayBody,
    call::Outcome,
    preset,
    retry::RetryLayer,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

type Content = Full<Bytes>;

type Connection = BoxCloneSyncService<Request<ReplayBody<Content>>, Response<Incoming>, hyper::Error>;

async fn connect(url: &str, version: Version) -> Connection {
    let stream = TokioIo::new(TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap());
    if version == Version::HTTP_2 {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        return BoxCloneSyncService::new(service_fn(move |request| sender.clone().send_request(request)));
    }
    let (sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    // The connection sends one request at a time, so a call waits until the body of the previous response has ended.
    let sender = Arc::new(Mutex::new(sender));
    BoxCloneSyncService::new(service_fn(move |request| {
        let sender = Arc::clone(&sender);
        async move {
            let mut sender = sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        }
    }))
}

/// Builds a request. HTTP/1 requests get a `host` header, because hyper's connection does not add one.
fn request(method: &str, url: &str, version: Version) -> Request<Content> {
    let request = Request::builder().method(method).uri(format!("{url}/v1")).version(version);
    let host = url.strip_prefix("http://").unwrap();
    let request = if version == Version::HTTP_11 { request.header("host", host) } else { request };
    request.body(Content::from("letter")).unwrap()
}

fn retry() -> RetryLayer {
    let delay = Duration::from_millis(1);
    RetryLayer::new().with_backoff(ExponentialBackoff::new(delay, delay).unwrap())
}

#[tokio::test]
async fn http1_and_http2_connections_work_under_a_preset() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let hello = || ScriptedResponse::status(200).with_body("hello");
        let service = ScriptedService::new([503.into(), hello(), 503.into(), hello()]);
        let server = ScriptedServer::start(service.clone()).await.unwrap();
        let url = server.url();
        let preset = preset::realtime_messaging(&url).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
        let layer = preset.with_retry(retry()).layer().unwrap();
        let stack = layer.layer(connect(&url, version).await);
        for _ in 0..2 {
            let response = stack.clone().oneshot(request("PUT", &url, version)).await.unwrap();
            let report = Report::from_response(&response).unwrap();
            assert_eq!((response.status().as_u16(), report.attempt_count()), (200, 2), "{report:?}");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
        }
        let seen = service.seen();
        assert_eq!((seen.len(), server.connections()), (4, 1));
        let is_whole = |seen: &tower_outbound::test_util::Seen| {
            seen.header("authorization") == Some("Bearer s3cret") && seen.body.as_deref() == Some(b"letter")
        };
        assert!(seen.iter().all(is_whole), "{seen:?}");
    }
}

fn assert_never_sent(error: &tower_outbound::Error) {
    let attempts = error.report().unwrap().attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::NotSent); 3], "{error:?}");
}

/// If the connection is closed, hyper's error proves that the request was not sent.
#[tokio::test]
async fn request_on_a_closed_connection_counts_as_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = connect(&url, Version::HTTP_11).await;
    drop(listener.accept().await.unwrap());
    let error = retry().layer(service).oneshot(request("POST", &url, Version::HTTP_11)).await.unwrap_err();
    assert_never_sent(&error);
}

/// The service does not wait for the connection to become ready. hyper then cancels the request.
#[tokio::test]
async fn request_on_a_connection_that_is_not_ready_counts_as_not_sent() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let server = ScriptedServer::start(ScriptedService::new([200])).await.unwrap();
        let url = server.url();
        let stream = TokioIo::new(TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap());
        let service = if version == Version::HTTP_2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            drop(connection);
            BoxCloneSyncService::new(service_fn(move |request| sender.clone().send_request(request)))
        } else {
            let (sender, connection) = http1::handshake(stream).await.unwrap();
            drop(connection);
            let sender = Arc::new(Mutex::new(sender));
            BoxCloneSyncService::new(service_fn(move |request| {
                let sender = Arc::clone(&sender);
                async move { sender.lock().await.send_request(request).await }
            }))
        };
        assert_never_sent(&retry().layer(service).oneshot(request("POST", &url, version)).await.unwrap_err());
    }
}
