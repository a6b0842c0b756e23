//! The two kinds of connections, and the stream below them.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::HeaderMap;
use http_body::Body as HttpBody;
use hyper::{
    client::conn::{http1, http2},
    rt::bounds::Http2ClientConnExec,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    task::AbortHandle,
};

use super::upload::UploadBody;
use crate::{
    clock::{self, Instant},
    error::BoxError,
};

/// The body of a request that a [`Transport`](super::Transport) can send. Every body with these bounds implements the trait.
pub trait RequestBody: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B> RequestBody for B where B: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

/// The limit of streams before the server's settings have arrived. No server sends this number.
pub(super) const UNKNOWN: usize = usize::MAX - 1;

/// A connection for one request.
pub(super) enum Connection<B> {
    Http1(Http1<B>),
    Http2(Arc<Http2<B>>),
}

/// An HTTP/1.1 connection.
pub(super) struct Http1<B> {
    pub(super) sender: http1::SendRequest<B>,
    pub(super) unsent: Arc<Unsent>,
    /// The task that runs the connection.
    pub(super) driver: AbortHandle,
    /// Whether the connection has already carried a request.
    pub(super) reused: bool,
    /// How long the connection may be idle.
    pub(super) idle_timeout: Duration,
}

impl<B: RequestBody> Http1<B> {
    /// Returns whether the connection can carry another request, and nothing of the last one is left to send.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready() && self.unsent.is_empty()
    }

    /// Waits until [`is_ready`](Self::is_ready). Returns an error if the connection has ended.
    pub(super) async fn ready(&mut self) -> hyper::Result<()> {
        self.sender.ready().await?;
        self.unsent.flushed().await;
        Ok(())
    }

    /// Reads the server's own idle timeout from the first response, and uses the connection for at most three quarters
    /// of it. The rest covers the time on the network.
    pub(super) fn read_keep_alive(&mut self, headers: &HeaderMap) {
        if !self.reused {
            let seconds = headers.get("keep-alive").and_then(|value| timeout_of(value.to_str().ok()?));
            if let Some(seconds) = seconds {
                self.idle_timeout = self.idle_timeout.min(Duration::from_secs(seconds) * 3 / 4);
            }
        }
        self.reused = true;
    }
}

/// Reads the parameter `timeout` of a `keep-alive` header, such as `timeout=5, max=100`.
fn timeout_of(value: &str) -> Option<u64> {
    value.split(',').find_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| seconds.trim().parse::<u32>().ok().map(u64::from)).flatten()
    })
}

/// An HTTP/2 connection, which many requests use at once.
pub(super) struct Http2<B> {
    pub(super) sender: http2::SendRequest<UploadBody<B>>,
    created: Instant,
    /// The streams in use. Changed only under the lock of the pool.
    streams: AtomicUsize,
    /// The server's limit of streams.
    limit: Arc<AtomicUsize>,
    /// When the last stream ended, and when the last response arrived, in nanoseconds after `created`.
    last_use: AtomicU64,
    last_response: AtomicU64,
    /// Whether the connection takes no further requests.
    is_retired: AtomicBool,
}

impl<B> Http2<B> {
    /// Creates the shared state of a connection, and the driver that must run the connection.
    pub(super) fn new(sender: http2::SendRequest<UploadBody<B>>) -> (Arc<Self>, Driver) {
        let limit = Arc::new(AtomicUsize::new(UNKNOWN));
        let driver = Driver { limit: Arc::clone(&limit) };
        let shared = Self {
            sender,
            created: clock::now(),
            streams: AtomicUsize::new(0),
            limit,
            last_use: AtomicU64::new(0),
            last_response: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        };
        (Arc::new(shared), driver)
    }

    /// Takes a stream if the server's limit allows one more. Before the settings have arrived, one request is sent.
    pub(super) fn begin(&self) -> bool {
        let limit = match self.limit.load(Relaxed) {
            UNKNOWN => 1,
            limit => limit,
        };
        let streams = self.streams.load(Relaxed);
        let is_free = streams < limit;
        if is_free {
            self.streams.store(streams + 1, Relaxed);
        }
        is_free
    }

    /// Gives a stream back.
    pub(super) fn end(&self) {
        if self.streams.fetch_sub(1, Relaxed) == 1 {
            self.last_use.store(self.elapsed(clock::now()), Relaxed);
        }
    }

    pub(super) fn received_response(&self) {
        self.last_response.store(self.elapsed(clock::now()).max(1), Relaxed);
    }

    pub(super) fn has_response(&self) -> bool {
        self.last_response.load(Relaxed) > 0
    }

    /// Returns whether a response has arrived after `time`.
    pub(super) fn has_response_since(&self, time: Instant) -> bool {
        self.last_response.load(Relaxed) > self.elapsed(time)
    }

    pub(super) fn retire(&self) {
        self.is_retired.store(true, Relaxed);
    }

    /// Returns whether the connection takes no further requests.
    pub(super) fn is_over(&self) -> bool {
        self.is_retired.load(Relaxed) || self.sender.is_closed()
    }

    pub(super) fn is_idle_for(&self, now: Instant, limit: Duration) -> bool {
        let idle = self.elapsed(now).saturating_sub(self.last_use.load(Relaxed));
        self.streams.load(Relaxed) == 0 && Duration::from_nanos(idle) >= limit
    }

    /// Returns whether the server's settings have not arrived.
    pub(super) fn is_new(&self) -> bool {
        self.limit.load(Relaxed) == UNKNOWN
    }

    fn elapsed(&self, now: Instant) -> u64 {
        crate::policy::nanos(now.saturating_duration_since(self.created))
    }
}

/// Runs an HTTP/2 connection. It does not keep the connection's state alive, so that an unused connection closes.
pub(super) struct Driver {
    limit: Arc<AtomicUsize>,
}

impl Driver {
    /// Runs the connection until it ends. Calls `changed` whenever the server's limit of streams changes.
    pub(super) async fn drive<B, E>(
        self,
        mut connection: http2::Connection<TokioIo<Stream>, B, E>,
        changed: impl Fn(),
    ) where
        B: RequestBody,
        E: Http2ClientConnExec<B, TokioIo<Stream>> + Unpin,
    {
        let mut wait = Duration::from_millis(1);
        let mut look_again = pin!(tokio::time::sleep(wait));
        poll_fn(|cx| {
            if Pin::new(&mut connection).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            loop {
                let limit = connection.current_max_send_streams();
                if self.limit.swap(limit, Relaxed) != limit {
                    changed();
                }
                if limit != UNKNOWN {
                    return Poll::Pending;
                }
                // hyper does not report that the settings have arrived.
                ready!(look_again.as_mut().poll(cx));
                wait *= 2;
                look_again.as_mut().reset(clock::after(clock::now(), wait));
            }
        })
        .await;
        // hyper returns the requests that it has not begun once the connection is dropped.
    }
}

/// A connection to a server or a proxy: TCP, the stream of a custom connector, or TLS over one of these.
pub(super) type Stream = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Whether hyper's buffer still contains a part of a request because the peer reads nothing. hyper reports such an
/// HTTP/1.1 connection as ready if the response has ended.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    is_blocked: AtomicBool,
    /// Whether hyper has written since the last call of `take_progress`.
    has_progress: AtomicBool,
    flushed: Notify,
}

impl Unsent {
    fn is_empty(&self) -> bool {
        !self.is_blocked.load(Relaxed)
    }

    /// Waits until hyper has written its buffer. At most one task may wait.
    async fn flushed(&self) {
        while !self.is_empty() {
            self.flushed.notified().await;
        }
    }

    /// Returns whether hyper has written since the last call.
    pub(super) fn take_progress(&self) -> bool {
        self.has_progress.swap(false, Relaxed)
    }

    fn record_write(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.set_blocked(true),
            Poll::Ready(_) => self.has_progress.store(true, Relaxed),
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
        self.unsent.record_write(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.unsent.record_write(&polled);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_header_contains_a_timeout_in_seconds() {
        for (value, expected) in [
            ("timeout=5", Some(5)),
            ("max=100, Timeout = 20", Some(20)),
            ("timeout=0", Some(0)),
            ("timeout=", None),
            ("timeout=-1", None),
            ("timeout=99999999999", None),
            ("max=5", None),
        ] {
            assert_eq!(timeout_of(value), expected, "{value}");
        }
    }
}
