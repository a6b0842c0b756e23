//! What the tests of the layers stand on: the public test kit's scripted service, and names for its answers.
#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

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
use tower::{Service, limit::ConcurrencyLimit};
use tower_outbound::{Body, BoxError, Error, test_util};

pub(crate) use tower_outbound::test_util::{ScriptedService, Seen};

/// What comes of one call, in few letters. A response's body is `answer`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scripted {
    /// This status, after the request's body was read.
    Status(u16),
    /// This status and these headers, after the request's body was read.
    Headers(u16, &'static [(&'static str, &'static str)]),
    /// This status and this `Retry-After`, after the request's body was read.
    RetryAfter(u16, &'static str),
    /// This status, so many milliseconds after the request's body was read.
    Delayed(u64, u16),
    /// This status, before anything of the request's body was read.
    BeforeBody(u16),
    /// This status, after the first frame of the request's body was read.
    AfterFirstFrame(u16),
    /// This status, with the request's body unread and kept for as long as the probe lives.
    KeepsBody(u16),
    /// An I/O error, before anything was read.
    Refused,
    /// An I/O error, after the request's body was read.
    Io(io::ErrorKind),
    /// Never anything, after the request's body was read.
    NoResponse,
}

impl From<Scripted> for test_util::ScriptedResponse {
    fn from(answer: Scripted) -> Self {
        let is = |status| Self::status(status).with_body("answer");
        match answer {
            Scripted::Status(status) => is(status),
            Scripted::Headers(status, headers) => {
                headers.iter().fold(is(status), |answer, (name, value)| answer.with_header(name, value))
            }
            Scripted::RetryAfter(status, pause) => is(status).with_header("retry-after", pause),
            Scripted::Delayed(delay, status) => is(status).with_delay(millis(delay)),
            Scripted::BeforeBody(status) => is(status).with_request_body_unread(),
            Scripted::AfterFirstFrame(status) => is(status).with_request_body_first_frame(),
            Scripted::KeepsBody(status) => is(status).with_request_body_kept(),
            Scripted::Refused => Self::refused(),
            Scripted::Io(kind) => Self::io_error(kind),
            Scripted::NoResponse => Self::never(),
        }
    }
}

/// What a broken service's `poll_ready` fails with.
#[derive(Debug, PartialEq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the probe is broken")
    }
}

impl StdError for Broken {}

/// Never gets ready: `poll_ready` fails with this error.
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
        unreachable!("called without being ready")
    }
}

/// Never gets ready: `poll_ready` fails with [`Broken`].
pub(crate) fn broken() -> Unready {
    Unready(|| Broken.into())
}

/// The probe under tower's `ConcurrencyLimit`: being ready takes a permit, which the call keeps until its response. Can
/// also be pending before it is ready, each instance and each time anew.
#[derive(Debug)]
pub(crate) struct Limited {
    limited: ConcurrencyLimit<ScriptedService>,
    permits: Arc<Semaphore>,
    most: usize,
    polls: u32,
    polls_left: u32,
}

impl Limited {
    pub(crate) fn over(probe: ScriptedService) -> Self {
        Self::with(probe, Semaphore::MAX_PERMITS, 0)
    }

    fn with(probe: ScriptedService, most: usize, polls: u32) -> Self {
        let permits = Arc::new(Semaphore::new(most));
        let limited = ConcurrencyLimit::with_semaphore(probe, Arc::clone(&permits));
        Self { limited, permits, most, polls, polls_left: polls }
    }

    pub(crate) fn with_permits(self, permits: usize) -> Self {
        Self::with(self.limited.into_inner(), permits, self.polls)
    }

    pub(crate) fn with_pending_polls(self, polls: u32) -> Self {
        Self::with(self.limited.into_inner(), self.most, polls)
    }

    /// Counts each instance that is ready and each call that is under way.
    pub(crate) fn permits_taken(&self) -> usize {
        self.most - self.permits.available_permits()
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

/// The cause that an error leads to, at whatever depth.
pub(crate) fn cause<E: StdError + 'static>(error: &Error) -> Option<&E> {
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
