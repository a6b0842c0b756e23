//! Tests the layers over a function with a custom error and custom bodies. The error and body types implement `Debug`,
//! `Send`, `Sync` and `Error` only where a layer requires that trait.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    cell::Cell,
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey, BoxError, Quota, Report,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    body::ReplayBody,
    call::Outcome,
    limit::{LocalLimiter, RateLimitLayer},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
};

const URL: &str = "https://api.example.com/v1";

/// A custom error that converts to a `BoxError` but does not implement `Error` or `Debug`.
enum CustomError {
    Lost(&'static str),
}

#[derive(Debug)]
struct Lost(&'static str);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Lost {}

impl From<CustomError> for BoxError {
    fn from(CustomError::Lost(text): CustomError) -> Self {
        Lost(text).into()
    }
}

/// A custom body that is not `Send`, with a custom data type and a custom error type. Only a body of a request needs an
/// error that converts to a `BoxError`, because a `ReplayBody` also fails if its length is wrong.
struct LocalBody {
    text: Option<&'static str>,
    _not_send: Rc<()>,
}

impl Body for LocalBody {
    type Data = std::collections::VecDeque<u8>;
    type Error = CustomError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, CustomError>>> {
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text.bytes().collect()))))
    }
}

fn body(text: &'static str) -> LocalBody {
    LocalBody { text: Some(text), _not_send: Rc::default() }
}

async fn text<B: Body + Unpin>(mut body: B) -> Vec<u8> {
    use http_body_util::BodyExt;

    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            text.extend_from_slice(bytes::Buf::chunk(&data));
        }
    }
    text
}

/// Returns a service that fails at its first call and responds to later calls. The service is not `Send`.
fn flaky<B: Body<Error: Into<BoxError>> + Unpin>()
-> impl Service<Request<ReplayBody<B>>, Response = Response<LocalBody>, Error = CustomError> + Clone {
    let calls = Rc::new(Cell::new(0));
    service_fn(move |request: Request<ReplayBody<B>>| {
        calls.set(calls.get() + 1);
        let number = calls.get();
        async move {
            assert_eq!(text(request.into_body()).await, b"letter");
            match number {
                1 => Err(CustomError::Lost("the first attempt")),
                _ => Ok(Response::new(body("response"))),
            }
        }
    })
}

/// Tests all layers except a layer that signs requests and `BodyIdleTimeoutLayer`.
#[tokio::test(start_paused = true)]
async fn each_layer_requires_only_the_trait_bounds_that_it_uses() {
    let stack = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(Duration::from_secs(60)).unwrap())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(Quota::per_second(10).unwrap())))
        .layer(AttemptSpanLayer::new())
        .layer(AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URL).unwrap()).unwrap())
        .layer(AttemptTimeoutLayer::new(Duration::from_secs(5)).unwrap())
        .service(flaky());
    let response = stack.oneshot(Request::put(URL).body(body("letter")).unwrap()).await;
    let response = response.unwrap_or_else(|error| panic!("{error}"));
    let report = Report::from_response(&response).unwrap();
    assert_eq!((report.attempt_count(), report.attempts()[0].outcome), (2, Some(Outcome::Failed)));
    assert_eq!(text(response.into_body()).await, b"response");
}

/// All layers except `RetryLayer` and a layer that signs requests accept a body type that does not implement `Body`.
#[tokio::test(start_paused = true)]
async fn layers_that_read_no_body_accept_any_body_type() {
    struct NoBody;

    let stack = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(Duration::from_secs(60)).unwrap())
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(Quota::per_second(10).unwrap())))
        .layer(AttemptSpanLayer::new())
        .layer(AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URL).unwrap()).unwrap())
        .layer(AttemptTimeoutLayer::new(Duration::from_secs(5)).unwrap())
        .layer(BodyIdleTimeoutLayer::new(Duration::from_secs(1)).unwrap())
        .service(service_fn(|_: Request<NoBody>| async { Ok::<_, CustomError>(Response::new(NoBody)) }));
    assert!(stack.oneshot(Request::get(URL).body(NoBody).unwrap()).await.is_ok());
}

/// A preset requires a `Send` request body, because a signature may need the body. The response body need not be
/// `Send`.
#[tokio::test(start_paused = true)]
async fn preset_accepts_a_function_with_a_custom_error() {
    let preset = preset::currency_rates(URL).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    let stack = preset.layer().unwrap().layer(flaky());
    let request = Request::put(URL).body(http_body_util::Full::<Bytes>::from("letter")).unwrap();
    let response = stack.oneshot(request).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Report::from_response(&response).unwrap().attempt_count(), 2);
}
