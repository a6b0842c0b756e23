//! The body of a request on an HTTP/2 stream.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::{
    connection::{Http2, RequestBody},
    pool::Host,
};
use crate::error::BoxError;

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
    is_cancelled: AtomicBool,
    reader: AtomicWaker,
    _stream: S,
}

impl Upload {
    pub(super) fn new<B: RequestBody>(stream: Stream<B>) -> Arc<Self> {
        Arc::new(Upload { is_cancelled: AtomicBool::new(false), reader: AtomicWaker::new(), _stream: stream })
    }

    /// Lets the body fail, so that hyper resets the stream with the reason of the error. hyper does not poll the body
    /// while the server's flow control blocks it. The stream then stays in use until the server reads the body or resets
    /// the stream.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, SeqCst);
        self.reader.wake();
    }
}

/// The body of a request, with its use of the stream if the body is not empty.
pub(super) struct UploadBody<B> {
    pub(super) body: B,
    pub(super) upload: Option<Arc<Upload>>,
}

impl<B: RequestBody> HttpBody for UploadBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        if let Some(upload) = &self.upload {
            upload.reader.register(cx.waker());
            if upload.is_cancelled.load(SeqCst) {
                return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
            }
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
