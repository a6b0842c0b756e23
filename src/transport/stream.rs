use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

/// A connection to a server or a proxy: TCP, the stream of a custom connector, or TLS over one of these.
pub(super) type Stream = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Whether hyper's buffer still contains a part of a request because the peer reads nothing. hyper reports such an
/// HTTP/1.1 connection as ready if the response has ended.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    is_blocked: AtomicBool,
    flushed: Notify,
}

impl Unsent {
    pub(super) fn is_empty(&self) -> bool {
        !self.is_blocked.load(Relaxed)
    }

    /// Waits until hyper has written its buffer. At most one task may wait.
    pub(super) async fn flushed(&self) {
        while !self.is_empty() {
            self.flushed.notified().await;
        }
    }

    /// Records the result of a flush, or of a write that must wait. hyper flushes the stream after the last byte of its
    /// buffer, so only a flush shows that the buffer is empty.
    fn set_blocked(&self, is_blocked: bool) {
        if self.is_blocked.load(Relaxed) != is_blocked {
            self.is_blocked.store(is_blocked, Relaxed);
            self.flushed.notify_one();
        }
    }
}

/// The stream of an HTTP/1.1 connection.
pub(super) struct Http1Stream {
    stream: Stream,
    unsent: Arc<Unsent>,
}

impl Http1Stream {
    pub(super) fn new(stream: Stream) -> (Self, Arc<Unsent>) {
        let unsent = Arc::default();
        (Self { stream, unsent: Arc::clone(&unsent) }, unsent)
    }
}

impl AsyncRead for Http1Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Http1Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, data);
        if polled.is_pending() {
            self.unsent.set_blocked(true);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        if polled.is_pending() {
            self.unsent.set_blocked(true);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.unsent.set_blocked(polled.is_pending());
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
