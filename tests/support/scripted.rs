//! The scripted service of the public test kit, with short names for its responses, and services for readiness tests.
#![allow(dead_code, unused_imports, reason = "each test binary uses some of these items")]

use std::{
    error::Error as StdError,
    fmt, io,
    ops::Deref,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};
use tower_outbound::{
    Body, BoxError, Error, Quota,
    limit::{Amounts, LocalLimiter, RateLimitLayer, Unit},
    test_util,
};

pub(crate) use tower_outbound::test_util::{ScriptedService, Seen};

/// The scripted result of one call. Every response has the body `answer`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scripted {
    /// Responds with the given status after reading the request body.
    Status(u16),
    /// Responds with the given status and headers after reading the request body.
    Headers(u16, &'static [(&'static str, &'static str)]),
    /// Responds with the given status and `Retry-After` after reading the request body.
    RetryAfter(u16, &'static str),
    /// Reads the request body, waits for the given number of milliseconds, and responds with the given status.
    Delayed(u64, u16),
    /// Responds with the given status without reading the request body.
    BeforeBody(u16),
    /// Responds with the given status after reading the first frame of the request body.
    AfterFirstFrame(u16),
    /// Responds with the given status and keeps the unread request body until the service is dropped.
    KeepsBody(u16),
    /// Fails with a refused connection, without reading the request.
    Refused,
    /// Fails with the given I/O error after reading the request body.
    Io(io::ErrorKind),
    /// Reads the request body and never responds.
    NoResponse,
}

impl From<Scripted> for test_util::ScriptedResponse {
    fn from(scripted: Scripted) -> Self {
        let respond = |status| Self::status(status).with_body("answer");
        match scripted {
            Scripted::Status(status) => respond(status),
            Scripted::Headers(status, headers) => headers
                .iter()
                .fold(respond(status), |response, (name, value)| response.with_header(name, value)),
            Scripted::RetryAfter(status, value) => respond(status).with_header("retry-after", value),
            Scripted::Delayed(delay, status) => respond(status).with_delay(millis(delay)),
            Scripted::BeforeBody(status) => respond(status).with_request_body_unread(),
            Scripted::AfterFirstFrame(status) => respond(status).with_request_body_first_frame(),
            Scripted::KeepsBody(status) => respond(status).with_request_body_kept(),
            Scripted::Refused => Self::refused(),
            Scripted::Io(kind) => Self::io_error(kind),
            Scripted::NoResponse => Self::never(),
        }
    }
}

/// The error of a [`broken`] service.
#[derive(Debug, PartialEq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service is broken")
    }
}

impl StdError for Broken {}

/// A service whose `poll_ready` fails with the error that the function returns.
#[derive(Debug, Clone)]
pub(crate) struct Unready(pub(crate) fn() -> BoxError);

impl<B> Service<Request<B>> for Unready {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Err(self.0()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        unreachable!("a caller called the service although `poll_ready` failed")
    }
}

/// Returns a service whose `poll_ready` fails with [`Broken`].
pub(crate) fn broken() -> Unready {
    Unready(|| Broken.into())
}

/// A scripted service in tower's `ConcurrencyLimit`. `poll_ready` acquires a permit, which the call holds until its
/// response. After [`with_pending_polls`](Self::with_pending_polls), the service needs several polls to become ready.
#[derive(Debug)]
pub(crate) struct Limited {
    limited: ConcurrencyLimit<ScriptedService>,
    permits: Arc<Semaphore>,
    max_permits: usize,
    polls: u32,
    polls_left: u32,
}

impl Limited {
    pub(crate) fn over(service: ScriptedService) -> Self {
        Self::with(service, Semaphore::MAX_PERMITS, 0)
    }

    fn with(service: ScriptedService, max_permits: usize, polls: u32) -> Self {
        let permits = Arc::new(Semaphore::new(max_permits));
        let limited = ConcurrencyLimit::with_semaphore(service, Arc::clone(&permits));
        Self { limited, permits, max_permits, polls, polls_left: polls }
    }

    pub(crate) fn with_permits(self, permits: usize) -> Self {
        Self::with(self.limited.into_inner(), permits, self.polls)
    }

    /// Makes `poll_ready` return `Pending` `polls` times before each `Ready`.
    pub(crate) fn with_pending_polls(self, polls: u32) -> Self {
        Self::with(self.limited.into_inner(), self.max_permits, polls)
    }

    /// Returns the number of permits that ready instances and calls in flight hold.
    pub(crate) fn permits_taken(&self) -> usize {
        self.max_permits - self.permits.available_permits()
    }
}

impl Deref for Limited {
    type Target = ScriptedService;

    fn deref(&self) -> &ScriptedService {
        self.limited.get_ref()
    }
}

impl Clone for Limited {
    fn clone(&self) -> Self {
        let (limited, permits) = (self.limited.clone(), Arc::clone(&self.permits));
        Self { limited, permits, polls_left: self.polls, ..*self }
    }
}

impl<B> Service<Request<B>> for Limited
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if let Some(left) = self.polls_left.checked_sub(1) {
            self.polls_left = left;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Service::<Request<B>>::poll_ready(&mut self.limited, cx)
    }

    #[allow(clippy::redundant_async_block, reason = "the block drops the permit at the response")]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.polls_left = self.polls;
        let call = self.limited.call(request);
        Box::pin(async move { call.await })
    }
}

pub(crate) type Content = Full<Bytes>;

/// A request with the body `hello`.
pub(crate) fn request(method: &str, uri: &str) -> Request<Content> {
    Request::builder().method(method).uri(uri).body(Full::from("hello")).unwrap()
}

pub(crate) fn get(uri: &str) -> Request<Content> {
    request("GET", uri)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Returns the first cause of type `E`.
pub(crate) fn cause<E: StdError + 'static>(error: &Error) -> Option<&E> {
    if let Some(shown) = error.shown_cause() {
        return Some(shown);
    }
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Makes four calls over a limiter of tokens and requests. It refuses the second call because of the tokens, and the
/// last one because of the requests.
pub(crate) async fn refuse_for_tokens_and_for_requests() {
    let tokens = Quota::per_minute(1_000).unwrap().with_unit(Unit::Tokens).unwrap();
    let limiter = LocalLimiter::sliding_window([Quota::per_minute(2).unwrap(), tokens]);
    let layer = RateLimitLayer::new(limiter).with_max_wait(Duration::ZERO);
    let service = layer.layer(ScriptedService::new([Scripted::Status(200)]));
    for (amount, is_granted) in [(900, true), (200, false), (100, true), (0, false)] {
        let mut request = Request::new(Full::<Bytes>::default());
        *request.uri_mut() = "https://api.example.com/v1".parse().unwrap();
        request.extensions_mut().insert(Amounts::of(Unit::Tokens, amount));
        assert_eq!(service.clone().oneshot(request).await.is_ok(), is_granted, "{amount}");
    }
}
