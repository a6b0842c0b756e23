//! Response bodies that record how far they were read and when they were dropped.

use std::{
    cell::Cell,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;
use tower::{Service, service_fn};
use tower_outbound::body::ReplayBody;

use super::{
    HeaderPairs,
    support::{Content, millis},
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum BodyKind {
    /// This many frames of 1 KiB, and then the end.
    Frames(u32),
    /// Frames of 8 KiB, without a delay and without an end.
    Endless,
    /// 10 bytes every 10 ms, without an end.
    Trickling,
    /// 10 bytes after 10 ms, and then the end.
    Delayed,
    /// No frame and no end.
    Stalled,
    /// A frame of 1 KiB, and then an error.
    Failing,
}

/// Makes bodies of one kind and records the bytes that were read, the ends that were reached and the times of the drops.
#[derive(Clone)]
pub(crate) struct BodyRecorder {
    kind: BodyKind,
    bytes_read: Arc<AtomicU64>,
    ends: Arc<AtomicU64>,
    drop_times: Arc<Mutex<Vec<Instant>>>,
}

/// A body that reports to its [`BodyRecorder`].
pub(crate) struct RecordedBody {
    frames: u32,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
    recorder: BodyRecorder,
}

impl BodyRecorder {
    pub(crate) fn new(kind: BodyKind) -> Self {
        Self { kind, bytes_read: Arc::default(), ends: Arc::default(), drop_times: Arc::default() }
    }

    pub(crate) fn body(&self) -> RecordedBody {
        RecordedBody { frames: 0, timer: None, recorder: self.clone() }
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns how many bodies were read to their end.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::Relaxed)
    }

    pub(crate) fn drop_times(&self) -> Vec<Instant> {
        self.drop_times.lock().unwrap().clone()
    }
}

impl Body for RecordedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let bytes = match this.recorder.kind {
            BodyKind::Stalled => return Poll::Pending,
            BodyKind::Delayed if this.frames == 1 => {
                this.recorder.ends.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(None);
            }
            BodyKind::Frames(frames) if this.frames == frames => {
                this.recorder.ends.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(None);
            }
            BodyKind::Failing if this.frames == 1 => {
                return Poll::Ready(Some(Err(io::Error::other("the body failed"))));
            }
            BodyKind::Frames(_) | BodyKind::Failing => 1_024,
            BodyKind::Endless => 8_192,
            BodyKind::Trickling | BodyKind::Delayed => {
                let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(millis(10))));
                std::task::ready!(timer.as_mut().poll(cx));
                this.timer = None;
                10
            }
        };
        this.frames += 1;
        this.recorder.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; bytes as usize])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        self.recorder.drop_times.lock().unwrap().push(Instant::now());
    }
}

/// Returns a service that responds 503 to its first request and 200 to the others, with recorded bodies. It adds the time
/// of each request to `starts`.
pub(crate) fn responds_503_once(
    bodies: &BodyRecorder,
    headers: HeaderPairs,
    starts: &Rc<Cell<Vec<Instant>>>,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<RecordedBody>, Error = http::Error> + Clone
{
    let (bodies, starts) = (bodies.clone(), Rc::clone(starts));
    service_fn(move |_: Request<ReplayBody<Content>>| {
        let mut times = starts.take();
        times.push(Instant::now());
        let mut response = Response::builder().status(if times.len() == 1 { 503 } else { 200 });
        starts.set(times);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        std::future::ready(response.body(bodies.body()))
    })
}
