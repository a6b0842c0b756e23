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
    /// The body ends after this many frames of 1 KiB.
    Frames(u32),
    /// The body never ends and returns frames of 8 KiB without a delay.
    Endless,
    /// The body never ends and returns 10 bytes every 10 ms.
    Trickling,
    /// The body returns 10 bytes after 10 ms and ends.
    Delayed,
    /// The body returns no frame and never ends.
    Stalled,
    /// The body returns a frame of 1 KiB and an error.
    Failing,
}

/// Creates bodies of one kind. Records the number of bytes read, the number of bodies read to the end, and the time of
/// each drop.
#[derive(Clone)]
pub(crate) struct BodyRecorder {
    kind: BodyKind,
    bytes_read: Arc<AtomicU64>,
    ends: Arc<AtomicU64>,
    drop_times: Arc<Mutex<Vec<Instant>>>,
}

/// A body that reports every read and its drop to a [`BodyRecorder`].
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

/// Returns a service that responds 503 to the first request and 200 to later requests. The service records its response
/// bodies, and adds the time of each request to `starts`.
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
