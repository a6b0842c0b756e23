//! The body of a response: hyper's body with its connection, its idle timeout, and the read of the rest of a failed
//! response.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Buf;
#[cfg(feature = "hyper")]
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
#[cfg(feature = "hyper")]
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};

use super::FRAMES_PER_POLL;
use crate::{
    call::CallContext,
    error::{BoxError, Error, ErrorKind, redact},
};

/// hyper's response body. At its end, it returns its connection to the pool of the transport.
#[cfg(feature = "hyper")]
pub(crate) struct ConnectionBody {
    incoming: Incoming,
    /// A frame that was read ahead. Boxed because every response is moved through all layers.
    first: Option<Box<Result<Frame<Bytes>, hyper::Error>>>,
    lease: Option<Box<dyn Lease>>,
    /// Whether the reader waits for a frame.
    is_awaited: bool,
}

/// The use of a connection for one request. If it is dropped, the rest of the body was not read.
#[cfg(feature = "hyper")]
pub(crate) trait Lease: Send {
    /// Records that a frame has arrived.
    fn received(&self);

    /// Ends the use of the connection after the end of the body.
    fn end(self: Box<Self>);
}

#[cfg(feature = "hyper")]
impl ConnectionBody {
    /// Reads the first frame if it has arrived, and returns the bytes of the body if that frame completes it. A short
    /// HTTP/2 body then ends its stream, even if the caller never reads it.
    #[cfg(feature = "client")]
    pub(crate) fn read_ahead(&mut self) -> Option<Bytes> {
        if self.first.is_some() {
            return None;
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(first) = Pin::new(&mut self.incoming).poll_frame(&mut context) else { return None };
        let complete = match first {
            None => Some(Bytes::new()),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if self.incoming.is_end_stream() => Some(data),
                Ok(data) => self.put_back(Ok(Frame::data(data))),
                Err(trailers) => self.put_back(Ok(trailers)),
            },
            Some(error) => self.put_back(error),
        };
        if complete.is_some() {
            self.end();
        }
        complete
    }

    #[cfg(feature = "client")]
    fn put_back<T>(&mut self, first: Result<Frame<Bytes>, hyper::Error>) -> Option<T> {
        self.first = Some(Box::new(first));
        None
    }

    #[cfg(feature = "client")]
    pub(crate) fn with_lease(self, lease: Box<dyn Lease>) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.end();
        }
    }
}

#[cfg(feature = "hyper")]
impl From<Incoming> for ConnectionBody {
    fn from(incoming: Incoming) -> Self {
        Self { incoming, first: None, lease: None, is_awaited: false }
    }
}

#[cfg(feature = "hyper")]
impl Body for ConnectionBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match self.first.take() {
            Some(first) => Poll::Ready(Some(*first)),
            None => Pin::new(&mut self.incoming).poll_frame(cx),
        };
        match &polled {
            Poll::Ready(Some(Err(_))) => self.lease = None,
            Poll::Ready(None) => self.end(),
            Poll::Ready(Some(Ok(_))) => {
                // A frame that the reader did not await may have arrived long before.
                if std::mem::take(&mut self.is_awaited) {
                    self.lease.iter().for_each(|lease| lease.received());
                }
                if self.incoming.is_end_stream() {
                    self.end();
                }
            }
            Poll::Pending => self.is_awaited = true,
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(redact)))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.incoming.size_hint();
        let first = self.first.as_deref().and_then(|first| first.as_ref().ok()?.data_ref());
        let first = first.map_or(0, |data| data.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint.set_lower(hint.lower().saturating_add(first));
        hint
    }
}

#[cfg(feature = "hyper")]
impl fmt::Debug for ConnectionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBody").field("incoming", &self.incoming).finish_non_exhaustive()
    }
}

// tower-http's `TimeoutBody` is not used, because it polls its timer before the body. A reader that is polled late then
// loses a frame that has already arrived. `TimeoutBody` also hides the length and the end of the body, and its error
// does not contain the limit.
pin_project! {
    /// A response body that fails if it stalls for longer than its idle timeout.
    ///
    /// A [`BodyIdleTimeout`](crate::timeout::BodyIdleTimeout) returns responses with this body.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] with [`is_timeout`](Error::is_timeout) if the body stalled. The inner body is then dropped,
    /// which closes its connection or resets its stream. Returns the inner body's own error if that body fails.
    pub struct IdleBody<B> {
        // The inner body. `None` after it stalled.
        #[pin]
        body: Option<B>,
        limit: Option<Duration>,
        // The timer is boxed because most bodies never need one.
        timer: Option<Pin<Box<Sleep>>>,
        // Whether the timer is set for the reader's current wait. The timer of an earlier wait is kept, because
        // cancelling it at each frame costs more. At worst, that timer wakes the reader once too often.
        armed: bool,
        // The call of the response, in which a stall is recorded.
        call: Option<CallContext>,
    }
}

impl<B> IdleBody<B> {
    pub(crate) fn new(body: B, limit: Option<Duration>) -> Self {
        Self { body: Some(body), limit, timer: None, armed: false, call: None }
    }

    pub(crate) fn with_call(self, call: Option<CallContext>) -> Self {
        Self { call, ..self }
    }

    /// Replaces the body and keeps the limit.
    #[cfg(feature = "hyper")]
    pub(crate) fn map<C>(self, change: impl FnOnce(B) -> C) -> IdleBody<C> {
        let Self { body, limit, timer, armed, call } = self;
        IdleBody { body: body.map(change), limit, timer, armed, call }
    }

    #[cfg(feature = "hyper")]
    pub(super) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    #[cfg(feature = "hyper")]
    pub(super) fn with_limit(self, limit: Option<Duration>) -> Self {
        Self { limit, ..self }
    }

    #[cfg(feature = "client")]
    pub(crate) fn get_ref(&self) -> Option<&B> {
        self.body.as_ref()
    }

    #[cfg(feature = "client")]
    pub(super) fn get_mut(&mut self) -> Option<&mut B> {
        self.body.as_mut()
    }

    pub(super) fn into_parts(self) -> (Option<B>, Option<Duration>, Option<CallContext>) {
        (self.body, self.limit, self.call)
    }
}

impl<B> Body for IdleBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        // Polls the body before the timer. A reader that is polled late therefore still gets a frame that has arrived.
        if let Poll::Ready(frame) = body.poll_frame(cx) {
            *this.armed = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(redact)));
        }
        let Some(limit) = *this.limit else { return Poll::Pending };
        if !*this.armed {
            // If the limit is so long that the clock cannot represent its end, no timer is set.
            let Some(ends) = Instant::now().checked_add(limit) else { return Poll::Pending };
            match this.timer {
                Some(timer) => timer.as_mut().reset(ends),
                None => *this.timer = Some(Box::pin(tokio::time::sleep_until(ends))),
            }
            *this.armed = true;
        }
        if let Some(timer) = this.timer {
            ready!(timer.as_mut().poll(cx));
        }
        match this.call {
            Some(call) => call.end_stalled(limit, || this.body.set(None)),
            None => this.body.set(None),
        }
        Poll::Ready(Some(Err(Error::new(ErrorKind::BodyTimeout, Some(limit), None).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Shows the idle timeout, but never the content of the body.
impl<B> fmt::Debug for IdleBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleBody")
            .field("limit", &self.limit)
            .field("stalled", &self.body.is_none())
            .finish_non_exhaustive()
    }
}

/// The maximum number of bytes that [`Drain`] reads. Reading more bytes would cost more than a new connection.
const DRAIN_LIMIT: u64 = 64 * 1024;

pin_project! {
    /// Reads and discards the body of a failed response, so that its connection can be reused.
    ///
    /// Completes at the end of the body. Also completes if the body fails or exceeds the limit, in which case the
    /// connection is closed. Reads nothing if the body reports a length above the limit. Each frame counts as at least
    /// one byte, so that endless empty frames also exceed the limit. The caller must limit the time of the read.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Drain<B> {
        #[pin]
        body: B,
        // The number of bytes that may still be read. `None` at the end.
        left: Option<u64>,
    }
}

impl<B: Body> Drain<B> {
    /// Reads at most 64 KiB of `body`, plus the rest of the frame that exceeds this limit.
    pub(crate) fn new(body: B) -> Self {
        Self::with_limit(body, DRAIN_LIMIT)
    }

    fn with_limit(body: B, limit: u64) -> Self {
        // A body that has ended is polled once, so that the layers around it see its end.
        let is_over = limit == 0 || body.size_hint().lower() > limit;
        Self { body, left: (!is_over).then_some(limit) }
    }
}

impl<B: Body> Future for Drain<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        for _ in 0..FRAMES_PER_POLL {
            let Some(left) = *this.left else { return Poll::Ready(()) };
            *this.left = match ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_data() && !this.body.is_end_stream() => {
                    left.checked_sub(frame.data_ref().map_or(0, Buf::remaining).max(1) as u64)
                }
                // Trailers are always the last frame of a body.
                _ => None,
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
