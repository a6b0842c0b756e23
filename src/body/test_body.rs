//! A scripted body for tests. It panics if it is polled after its end.

use std::{
    collections::VecDeque,
    fmt,
    io::Cursor,
    marker::PhantomPinned,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::call::CallContext;

#[derive(Debug, Clone)]
pub(super) enum Step {
    Data(Vec<u8>),
    Trailers(HeaderMap),
    Wait,
    Fail,
}

impl Step {
    pub(super) fn data(len: u8) -> Self {
        Self::Data((0..len).collect())
    }

    /// Creates trailers of one field, whose name and value have `5 + len` bytes together.
    pub(super) fn trailers(len: usize) -> Self {
        let value = HeaderValue::from_str(&"v".repeat(len)).unwrap();
        Self::Trailers([("x-sum".parse().unwrap(), value)].into_iter().collect())
    }
}

pin_project! {
    #[derive(Debug, Default)]
    pub(super) struct Script {
        steps: VecDeque<Step>,
        knows_end: bool,
        knows_size: bool,
        // The length that the body announces, whatever its data.
        announced: Option<u64>,
        over: bool,
        given: Given,
        // Makes the body `!Unpin`, because the code under test must not require `Unpin`.
        #[pin]
        pin: PhantomPinned,
    }
}

/// Counts the frames that the body has returned.
#[derive(Debug, Default, Clone)]
pub(super) struct Given(Arc<AtomicUsize>);

impl Given {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Script {
    pub(super) fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), ..Self::default() }
    }

    pub(super) fn given(&self) -> Given {
        self.given.clone()
    }

    pub(super) fn knowing_its_end(mut self) -> Self {
        self.knows_end = true;
        self
    }

    pub(super) fn knowing_its_size(mut self) -> Self {
        self.knows_size = true;
        self
    }

    pub(super) fn announcing(mut self, length: u64) -> Self {
        self.announced = Some(length);
        self
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("body failed as scripted")
    }
}

impl std::error::Error for Failure {}

impl Body for Script {
    type Data = Cursor<Vec<u8>>;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Failure>>> {
        let this = self.project();
        assert!(!*this.over, "body was polled after its end");
        let frame = match this.steps.pop_front() {
            Some(Step::Wait) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Step::Data(data)) => Some(Ok(Frame::data(Cursor::new(data)))),
            Some(Step::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Some(Step::Fail) => Some(Err(Failure)),
            None => None,
        };
        match &frame {
            Some(Ok(_)) => {
                this.given.0.fetch_add(1, Ordering::Relaxed);
            }
            _ => *this.over = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.knows_end && self.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if let Some(length) = self.announced {
            return SizeHint::with_exact(length);
        }
        if !self.knows_size {
            return SizeHint::new();
        }
        let len = |step: &Step| if let Step::Data(data) = step { data.len() as u64 } else { 0 };
        SizeHint::with_exact(self.steps.iter().map(len).sum())
    }
}

/// The data and trailers that a reader has received.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Read {
    pub(super) data: Vec<u8>,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) failed: bool,
}

/// Reads up to `frames` frames. If the body ends before that, checks that it returns `None` in two further polls.
pub(super) fn read<B: Body<Data = Bytes>>(body: Pin<&mut B>, frames: usize) -> Read {
    let (mut body, mut read, mut given) = (body, Read::default(), 0);
    let cx = &mut Context::from_waker(Waker::noop());
    while given < frames {
        let (hint, ended) = (body.size_hint(), body.is_end_stream());
        match body.as_mut().poll_frame(cx) {
            Poll::Pending => continue,
            Poll::Ready(None) => break,
            Poll::Ready(Some(Err(_))) => read.failed = true,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => {
                    assert!(hint.upper().is_none_or(|upper| data.len() as u64 <= upper));
                    read.data.extend_from_slice(&data);
                }
                Err(frame) => read.trailers = frame.into_trailers().ok(),
            },
        }
        assert!(!ended, "body returned a frame after its end");
        given += 1;
    }
    if given < frames {
        for _ in 0..2 {
            assert!(matches!(body.as_mut().poll_frame(cx), Poll::Ready(None)));
        }
        assert!(body.is_end_stream());
    }
    read
}

pub(super) fn read_all<B: Body<Data = Bytes>>(body: B) -> Read {
    read(pin!(body), usize::MAX)
}

/// Returns the context of a new call.
pub(super) fn call() -> CallContext {
    CallContext::of(&mut http::Extensions::new())
}
