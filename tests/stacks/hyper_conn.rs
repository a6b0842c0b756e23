//! Tests the layers over a single connection of hyper, without hyper-util's client and connection pool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, BoxError, ExponentialBackoff, Quota, Report,
    auth::{AuthLayer, Origin},
    body::ReplayBody,
    call::Outcome,
    limit::{LocalLimiter, RateLimitLayer},
    preset,
    retry::RetryLayer,
};

type Content = Full<Bytes>;
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

/// A handle to an HTTP/1 connection. The connection sends one request at a time, so a clone waits until the body of the
/// previous response has ended.
struct Http1<B>(Arc<Mutex<http1::SendRequest<B>>>);

impl<B> Clone for Http1<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Body + Send + 'static> Service<Request<B>> for Http1<B> {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let sender = Arc::clone(&self.0);
        Box::pin(async move {
            let mut sender = sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        })
    }
}

/// A handle to an HTTP/2 connection. hyper's handle is `Clone` and reports when it is ready.
struct Http2<B>(http2::SendRequest<B>);

impl<B> Clone for Http2<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Body + Send + 'static> Service<Request<B>> for Http2<B> {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        Box::pin(self.0.send_request(request))
    }
}

async fn http1<B>(url: &str) -> Http1<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (sender, connection) = http1::handshake(connect(url).await).await.unwrap();
    tokio::spawn(connection);
    Http1(Arc::new(Mutex::new(sender)))
}

async fn http2<B>(url: &str) -> Http2<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (sender, connection) = http2::handshake(TokioExecutor::new(), connect(url).await).await.unwrap();
    tokio::spawn(connection);
    Http2(sender)
}

async fn connect(url: &str) -> TokioIo<TcpStream> {
    TokioIo::new(TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap())
}

/// Starts a server that responds with 503 and 200 in turn, or with 401 if a request has no key. Returns the URL and the
/// number of requests.
async fn server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::<AtomicUsize>::default();
    let counting = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = Arc::clone(&counting);
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let status =
                    match (request.headers().contains_key("authorization"), count.fetch_add(1, SeqCst)) {
                        (false, _) => StatusCode::UNAUTHORIZED,
                        (true, number) if number % 2 == 0 => StatusCode::SERVICE_UNAVAILABLE,
                        (true, _) => StatusCode::OK,
                    };
                async move {
                    let sent = request.into_body().collect().await?.to_bytes();
                    let mut response = Response::new(Full::new(sent));
                    *response.status_mut() = status;
                    Ok::<_, hyper::Error>(response)
                }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            tokio::spawn(
                async move { builder.serve_connection(TokioIo::new(stream), service).await.is_ok() },
            );
        }
    });
    (url, count)
}

/// Builds a PUT request. HTTP/1 requests get a `host` header, because hyper's connection does not add one.
fn request(url: &str, version: Version) -> Request<Content> {
    let mut request =
        Request::put(format!("{url}/v1")).version(version).body(Content::from("letter")).unwrap();
    let host = url.strip_prefix("http://").unwrap();
    if version == Version::HTTP_11 {
        request.headers_mut().insert("host", host.parse().unwrap());
    }
    request
}

async fn assert_second_attempt<R, E>(response: Result<Response<R>, E>)
where
    R: Body<Data: std::fmt::Debug, Error: std::fmt::Debug>,
    E: std::fmt::Debug,
{
    let response = response.unwrap();
    let report = Report::from_response(&response).unwrap().clone();
    assert_eq!((response.status().as_u16(), report.attempt_count()), (200, 2), "{report:?}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "letter");
}

fn retry() -> RetryLayer {
    let delay = Duration::from_millis(1);
    RetryLayer::new().with_backoff(ExponentialBackoff::new(delay, delay).unwrap())
}

macro_rules! under_single_layers {
    ($connect:ident, $version:expr) => {{
        let (url, count) = server().await;
        let layers = ServiceBuilder::new()
            .layer(retry())
            .layer(RateLimitLayer::new(LocalLimiter::token_bucket(Quota::per_second(100).unwrap())))
            .layer(AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(&url).unwrap()).unwrap());
        let service = layers.service($connect::<ReplayBody<Content>>(&url).await);
        for _ in 0..2 {
            assert_second_attempt(service.clone().oneshot(request(&url, $version)).await).await;
        }
        assert_eq!(count.load(SeqCst), 4);
    }};
}

macro_rules! under_a_preset {
    ($connect:ident, $version:expr) => {{
        let (url, count) = server().await;
        let preset = preset::realtime_messaging(&url).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
        let layer = preset.with_retry(retry()).layer().unwrap();
        let service = layer.layer($connect::<ReplayBody<Content>>(&url).await);
        for _ in 0..2 {
            assert_second_attempt(service.clone().oneshot(request(&url, $version)).await).await;
        }
        assert_eq!(count.load(SeqCst), 4);
    }};
}

#[tokio::test]
async fn http1_connection_works_under_single_layers() {
    under_single_layers!(http1, Version::HTTP_11);
}

#[tokio::test]
async fn http2_connection_works_under_single_layers() {
    under_single_layers!(http2, Version::HTTP_2);
}

#[tokio::test]
async fn http1_connection_works_under_a_preset() {
    under_a_preset!(http1, Version::HTTP_11);
}

#[tokio::test]
async fn http2_connection_works_under_a_preset() {
    under_a_preset!(http2, Version::HTTP_2);
}

/// If the connection is closed, hyper's error proves that the request was not sent.
#[tokio::test]
async fn request_on_a_closed_connection_counts_as_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = http1::<ReplayBody<Content>>(&url).await;
    drop(listener.accept().await.unwrap());
    let mut request = request(&url, Version::HTTP_11);
    *request.method_mut() = http::Method::POST;
    let error = retry().layer(service).oneshot(request).await.unwrap_err();
    let attempts = error.report().unwrap().attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::NotSent); 3], "{error:?}");
}
