//! The body of a request on an HTTP/2 stream.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::{runtime::Handle, task::AbortHandle};

use super::{
    connection::{Http2, RequestBody},
    lease::rest_limit,
    pool::Host,
};

/// A stream of an HTTP/2 connection. The server counts it until the response and the body of the request have ended.
pub(super) struct Stream<B: RequestBody> {
    pub(super) host: Arc<Host<B>>,
    pub(super) connection: Arc<Http2<B>>,
}

impl<B: RequestBody> Drop for Stream<B> {
    fn drop(&mut self) {
        self.host.end_stream(&self.connection);
    }
}

/// The use of a stream by the body of a request. It holds the stream until the body has been dropped.
pub(super) struct Upload<S: ?Sized = dyn Send + Sync> {
    /// The number of frames that hyper has taken.
    frames: AtomicUsize,
    /// The task that sends the rest of the body. `None` if hyper has taken the body without waiting.
    task: OnceLock<AbortHandle>,
    polled: Polled,
    _stream: S,
}

impl Upload {
    pub(super) fn new<B: RequestBody>(stream: Stream<B>) -> Arc<Self> {
        let polled = stream.connection.polled.clone();
        Arc::new(Upload { frames: AtomicUsize::new(0), task: OnceLock::new(), polled, _stream: stream })
    }

    /// Ends the use of the stream by the response. If the response is incomplete, resets the stream. Otherwise the rest
    /// of the body is sent as long as the server reads it, or for a short time after an error response. hyper would
    /// wait for the body forever in all cases.
    pub(super) fn end_response(self: Arc<Self>, is_complete: bool, is_error: bool) {
        let Some(task) = self.task.get().cloned().filter(|_| Arc::strong_count(&self) > 1) else { return };
        let runtime = match Handle::try_current() {
            Ok(runtime) if is_complete => runtime,
            _ => return task.abort(),
        };
        let (upload, mut last) = (Arc::downgrade(&self), self.frames.load(Relaxed));
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(rest_limit(is_error)).await;
                let Some(upload) = upload.upgrade() else { return };
                let frames = upload.frames.load(Relaxed);
                if is_error || frames == last {
                    return task.abort();
                }
                last = frames;
            }
        });
    }
}

/// The body that hyper has polled before it spawns the task that sends the rest of the body.
#[derive(Clone, Default)]
pub(super) struct Polled(Arc<Mutex<Option<Weak<Upload>>>>);

impl Polled {
    fn replace(&self, upload: Option<Weak<Upload>>) -> Option<Arc<Upload>> {
        let mut polled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *polled, upload)?.upgrade()
    }

    /// Records the next task that hyper spawns. It sends the rest of the body, if the body has not ended.
    pub(super) fn spawned(&self, task: AbortHandle) {
        if let Some(upload) = self.replace(None) {
            // A task that is already recorded stays.
            let _ = upload.task.set(task);
        }
    }
}

/// The body of a request, with its use of the stream if the body is not empty.
pub(super) struct UploadBody<B> {
    pub(super) body: B,
    pub(super) upload: Option<Arc<Upload>>,
}

impl<B: RequestBody> HttpBody for UploadBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(upload) = &self.upload {
            if upload.task.get().is_none() {
                upload.polled.replace(Some(Arc::downgrade(upload)));
            }
            if polled.is_ready() {
                upload.frames.fetch_add(1, Relaxed);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
