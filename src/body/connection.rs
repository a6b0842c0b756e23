use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::error::{BoxError, redact};

/// hyper's response body. At its end, it returns its connection to the pool of the transport.
pub(crate) struct ConnectionBody {
    incoming: Incoming,
    /// A frame that was read ahead. Boxed because every response is moved through all layers.
    first: Option<Box<Result<Frame<Bytes>, hyper::Error>>>,
    lease: Option<Box<dyn Lease>>,
}

/// The use of a connection for one request. If it is dropped, the rest of the body was not read.
pub(crate) trait Lease: Send {
    /// Ends the use of the connection after the end of the body.
    fn end(self: Box<Self>);
}

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
}

impl From<Incoming> for ConnectionBody {
    fn from(incoming: Incoming) -> Self {
        Self { incoming, first: None, lease: None }
    }
}

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
            Poll::Ready(Some(Ok(_))) if self.incoming.is_end_stream() => self.end(),
            _ => {}
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

impl ConnectionBody {
    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.end();
        }
    }
}

impl fmt::Debug for ConnectionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBody").field("incoming", &self.incoming).finish_non_exhaustive()
    }
}
