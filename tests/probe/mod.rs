//! What the tests of the layers stand on: a service that holds its callers to tower's contract.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::{
    any::Any,
    error::Error as StdError,
    fmt, io, mem,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Request, Response, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{BoxError, Error, call::Call};

/// Panics when it is called without having been polled ready on that very instance, and loses its readiness on
/// `Clone`. Answers by its script, the last answer for ever, and keeps what it saw. All clones share both.
pub(crate) struct Probe {
    shared: Arc<Shared>,
    polls_left: u32,
    ready: bool,
}

struct Shared {
    pending: u32,
    broken: bool,
    script: Vec<Answer>,
    seen: Mutex<Vec<Seen>>,
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// What comes of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// This status, after the request's body was read.
    Is(u16),
    /// This status and these headers, after the request's body was read.
    With(u16, &'static [(&'static str, &'static str)]),
    /// This status and this `Retry-After`, after the request's body was read.
    Asks(u16, &'static str),
    /// This status, so many milliseconds after the request's body was read.
    Late(u64, u16),
    /// This status, before anything of the request's body was read.
    Early(u16),
    /// This status, after the first frame of the request's body was read.
    Half(u16),
    /// This status, with the request's body unread and kept for as long as the probe lives.
    Keeps(u16),
    /// An I/O error, before anything was read.
    Refused,
    /// An I/O error, after the request's body was read.
    Io(io::ErrorKind),
    /// Never anything, after the request's body was read.
    Silent,
}

/// One request as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) head: Parts,
    /// The number of the attempt, read as an inner service may read it.
    pub(crate) attempt: Option<u32>,
    /// None when it was not read.
    pub(crate) body: Option<(Bytes, Option<HeaderMap>)>,
}

/// What a broken probe's `poll_ready` fails with.
#[derive(Debug, PartialEq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the probe is broken")
    }
}

impl StdError for Broken {}

impl Probe {
    pub(crate) fn new(script: impl IntoIterator<Item = Answer>) -> Self {
        Self::build(0, false, script)
    }

    /// Is pending `polls` times before it is ready, each instance and each time anew.
    pub(crate) fn pending(polls: u32, script: impl IntoIterator<Item = Answer>) -> Self {
        Self::build(polls, false, script)
    }

    /// Never gets ready: `poll_ready` fails with [`Broken`].
    pub(crate) fn broken() -> Self {
        Self::build(0, true, [])
    }

    fn build(pending: u32, broken: bool, script: impl IntoIterator<Item = Answer>) -> Self {
        let script = script.into_iter().collect();
        let shared =
            Arc::new(Shared { pending, broken, script, seen: Mutex::default(), kept: Mutex::default() });
        Self { shared, polls_left: pending, ready: false }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.shared.seen.lock().unwrap().len()
    }

    /// How many instances and futures of it are alive.
    pub(crate) fn instances(&self) -> usize {
        Arc::strong_count(&self.shared)
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), polls_left: self.shared.pending, ready: false }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for Probe
where
    B: Body<Data: Send, Error: fmt::Debug> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.shared.broken {
            return Poll::Ready(Err(Broken.into()));
        }
        if let Some(left) = self.polls_left.checked_sub(1) {
            self.polls_left = left;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        assert!(mem::take(&mut self.ready), "called without having been polled ready");
        self.polls_left = self.shared.pending;
        let (head, body) = request.into_parts();
        let attempt = head.extensions.get::<Call>().map(Call::attempt);
        let mut seen = self.shared.seen.lock().unwrap();
        let number = seen.len();
        seen.push(Seen { at: Instant::now(), head, attempt, body: None });
        let answer = self.shared.script[number.min(self.shared.script.len() - 1)];
        let shared = Arc::clone(&self.shared);
        async move {
            match answer {
                Answer::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
                Answer::Early(_) => drop(body),
                Answer::Half(_) => {
                    let mut body = pin!(body);
                    body.frame().await;
                }
                Answer::Keeps(_) => shared.kept.lock().unwrap().push(Box::new(body)),
                _ => {
                    let read = body.collect().await.expect("the request's body fails");
                    let trailers = read.trailers().cloned();
                    shared.seen.lock().unwrap()[number].body = Some((read.to_bytes(), trailers));
                }
            }
            let mut response = Response::builder();
            let status = match answer {
                Answer::Is(status) | Answer::Early(status) | Answer::Half(status) | Answer::Keeps(status) => {
                    status
                }
                Answer::With(status, headers) => {
                    for (name, value) in headers {
                        response = response.header(*name, *value);
                    }
                    status
                }
                Answer::Asks(status, pause) => {
                    response = response.header("retry-after", pause);
                    status
                }
                Answer::Late(millis, status) => {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    status
                }
                Answer::Io(kind) => return Err(io::Error::from(kind).into()),
                Answer::Silent | Answer::Refused => return std::future::pending().await,
            };
            Ok(response.status(status).body(Full::from("answer"))?)
        }
        .boxed()
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

/// Runs a layer over the probe in each of its moods. `uri` is one that the layer lets pass.
pub(crate) async fn keeps_the_contract<L, S, R>(layer: L, uri: &str)
where
    L: Layer<Probe, Service = S>,
    S: Service<Request<Content>, Response = Response<R>, Error = Error> + Clone,
    R: fmt::Debug,
{
    for pending in [0, 1, 3] {
        let probe = Probe::pending(pending, [Answer::Is(200)]);
        let mut service = layer.layer(probe.clone());
        for _ in 0..2 {
            assert_eq!(service.ready().await.unwrap().call(get(uri)).await.unwrap().status(), 200);
        }
        // A clone of a service that is ready is not ready, and the service itself still is.
        service.ready().await.unwrap();
        let mut clone = service.clone();
        let first = service.call(get(uri));
        let second = clone.ready().await.unwrap().call(get(uri));
        assert!(second.await.is_ok() && first.await.is_ok());
        assert_eq!(probe.calls(), 4, "pending {pending} times");
    }

    let probe = Probe::broken();
    let error = layer.layer(probe.clone()).oneshot(get(uri)).await.unwrap_err();
    assert!(error.is_service(), "{error:?}");
    assert_eq!(error.source().and_then(|cause| cause.downcast_ref()), Some(&Broken));
    assert_eq!(probe.calls(), 0);
}
