//! Bodies of answers that have no proper end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;

/// How the body of an answer ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Whole,
    CutOff(io::ErrorKind),
    Stalled,
}

/// Gives its bytes, then ends as it was said.
pub(super) struct Broken {
    data: Option<Bytes>,
    end: End,
    flushed: bool,
}

impl Broken {
    pub(super) fn new(data: Bytes, end: End) -> Self {
        Self { data: Some(data), end, flushed: false }
    }
}

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(data) = self.data.take().filter(|data| !data.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match self.end {
            End::Stalled => Poll::Pending,
            End::CutOff(_) if !self.flushed => {
                // A server sends what it has when it has to wait; what is cut off at once would take it along.
                self.flushed = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            End::CutOff(kind) => {
                self.end = End::Whole;
                Poll::Ready(Some(Err(kind.into())))
            }
            End::Whole => Poll::Ready(None),
        }
    }
}
