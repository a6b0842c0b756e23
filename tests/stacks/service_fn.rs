//! What a service and its types need to be: as little as this. A function with an error and bodies of its own, none of
//! which is `Debug`, `Send`, `Sync` or an `Error` unless it must.
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
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey, BoxError, Quota, Report,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    body::ReplayBody,
    call::Outcome,
    limit::{RateLimitLayer, TokenBucket},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
};

const URL: &str = "https://api.example.com/v1";

/// The user's own error: no `Error`, no `Debug`, but it can be made one.
enum Mine {
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

impl From<Mine> for BoxError {
    fn from(Mine::Lost(what): Mine) -> Self {
        Lost(what).into()
    }
}

/// The user's own body, on one thread only, with data and an error of its own.
struct OneThread {
    text: Option<&'static str>,
    _one_thread: Rc<()>,
}

struct NoDebug;

impl Body for OneThread {
    type Data = std::collections::VecDeque<u8>;
    type Error = NoDebug;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, NoDebug>>> {
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text.bytes().collect()))))
    }
}

fn body(text: &'static str) -> OneThread {
    OneThread { text: Some(text), _one_thread: Rc::default() }
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

fn request() -> Request<OneThread> {
    Request::put(URL).body(body("letter")).unwrap()
}

/// All layers but those that read a body or end an answer's, over a service that can't leave its thread.
#[tokio::test(start_paused = true)]
async fn single_layers_need_no_more_than_they_use() {
    let calls = Rc::new(Cell::new(0));
    let counting = Rc::clone(&calls);
    let service = service_fn(move |request: Request<ReplayBody<OneThread>>| {
        counting.set(counting.get() + 1);
        let number = counting.get();
        async move {
            assert_eq!(text(request.into_body()).await, b"letter");
            match number {
                1 => Err(Mine::Lost("the first")),
                _ => Ok(Response::new(body("answer"))),
            }
        }
    });
    let stack = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(Duration::from_secs(60)).unwrap())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_second(10).unwrap())))
        .layer(AttemptSpanLayer::new())
        .layer(AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URL).unwrap()).unwrap())
        .layer(TimeoutLayer::per_attempt(Duration::from_secs(5)).unwrap())
        .service(service);
    let response = stack.oneshot(request()).await.map_err(|error| error.to_string());
    let response = response.unwrap_or_else(|error| panic!("{error}"));
    let report = Report::from_response(&response).unwrap();
    assert_eq!((report.attempt_count(), calls.get()), (2, 2));
    assert_eq!(report.attempts()[0].outcome, Some(Outcome::Failed));
    assert_eq!(text(response.into_body()).await, b"answer");
}

/// A limiter, an attempt and a key don't look at bodies: these are none.
#[tokio::test(start_paused = true)]
async fn what_does_not_read_a_body_takes_anything_for_one() {
    struct NoBody;

    let stack = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(Duration::from_secs(60)).unwrap())
        .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_second(10).unwrap())))
        .layer(AttemptSpanLayer::new())
        .layer(AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URL).unwrap()).unwrap())
        .layer(TimeoutLayer::per_attempt(Duration::from_secs(5)).unwrap())
        .layer(BodyIdleTimeoutLayer::new(Duration::from_secs(1)).unwrap())
        .service(service_fn(|_: Request<NoBody>| async { Ok::<_, Mine>(Response::new(NoBody)) }));
    assert!(stack.oneshot(Request::get(URL).body(NoBody).unwrap()).await.is_ok());
}

/// A preset can sign, and for that its request's body must be able to move to another thread. The answer's need not.
#[tokio::test(start_paused = true)]
async fn a_preset_over_a_function_with_an_error_of_its_own() {
    type Content = http_body_util::Full<Bytes>;

    let calls = Rc::new(Cell::new(0));
    let counting = Rc::clone(&calls);
    let service = service_fn(move |request: Request<ReplayBody<Content>>| {
        counting.set(counting.get() + 1);
        let number = counting.get();
        async move {
            assert_eq!(request.headers()["authorization"], "Bearer s3cret");
            match number {
                1 => Err(Mine::Lost("the first")),
                _ => Ok(Response::new(body("answer"))),
            }
        }
    });
    let preset = preset::currency_rates(URL).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    let stack = preset.layer().unwrap().layer(service);
    let response = stack.oneshot(Request::get(URL).body(Content::default()).unwrap()).await;
    let response = response.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Report::from_response(&response).unwrap().attempt_count(), 2);
}

/// The cause that is the user's own is found again.
#[tokio::test(start_paused = true)]
async fn the_users_own_error_is_the_source() {
    let service = service_fn(|_: Request<ReplayBody<OneThread>>| async {
        Err::<Response<OneThread>, _>(Mine::Lost("all of them"))
    });
    let result = RetryLayer::new().layer(service).oneshot(request()).await;
    let error = result.map(drop).unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref::<Lost>().unwrap().0, "all of them");
}
