use std::{
    any::Any,
    fmt, mem,
    pin::Pin,
    sync::{Arc, Mutex, atomic::AtomicU32},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    body::{Body as AnyBody, take},
    recording::{Recorded, Recording, Shared, Source},
};
use crate::{call::CallContext, error::BoxError};

/// The maximum size of a part of a large chunk. hyper buffers up to about 400 KiB of a body, so smaller parts would not
/// show the progress more precisely.
const PART: usize = 64 * 1024;

/// The request body below a [`retry`](crate::retry) layer, which can resend it.
///
/// The first attempt sends the body and records it, up to the [replay limit]. Further attempts send the recording. A
/// body of [`Body::from_fn`](crate::Body::from_fn) is created again instead, and not recorded. Chunks under 64 bytes,
/// except for the first chunk, are copied and merged. Any other chunk of type `Bytes` is recorded without a copy. If
/// the body exceeds the limit, the recording is dropped and the attempt continues.
///
/// Each frame that an attempt takes restarts the [attempt timeout](crate::timeout::AttemptTimeoutLayer). A chunk of
/// more than 64 KiB is therefore sent in parts.
///
/// [`new`](Self::new) creates a body that is not recorded and does not restart the timeout.
///
/// [replay limit]: crate::retry::RetryLayer::with_replay_limit
///
/// ```
/// use http_body::Body as _;
/// use tower_outbound::{Body, body::ReplayBody};
///
/// let body = ReplayBody::new(Body::from("hello"));
/// assert_eq!(body.size_hint().exact(), Some(5));
/// ```
///
/// # Default
///
/// A body that returns the data of `B::default()`, and is not recorded.
///
/// # Notes
///
/// - Polling a body returns `None` after its end or after an error.
/// - A body whose length differs from its `content-length` or its exact size hint returns an error: see
///   [the module](super#notes).
/// - A recorded chunk that is part of a larger buffer keeps that buffer in memory until the call ends.
/// - A body that an attempt has read only in part cannot be resent. A body of which nothing was read can be resent
///   regardless of its size, for example after a connect error.
pub struct ReplayBody<B> {
    /// `None` at the end of the body. The state is boxed, because it would make requests large. A stack and hyper move
    /// a request about thirty times, and moving 256 bytes or more costs twice as much as moving a smaller value.
    state: Option<Pin<Box<State<B>>>>,
}

pin_project! {
    struct State<B> {
        #[pin]
        content: Content<B>,
        // The rest of a large chunk, which is sent in parts.
        rest: Bytes,
        // `None` for a body that is not recorded.
        shared: Option<Arc<Shared<B>>>,
        // The number of this body among those of `shared`.
        number: u32,
    }

    // Over HTTP/1, hyper stops reading the body at its length, before the body reports its end. A recording of that
    // length is therefore treated as complete. Any other body that was read in part cannot be resent.
    impl<B> PinnedDrop for State<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let Some(shared) = this.shared else { return };
            match this.content.project() {
                ContentProj::Unread { source } if source.is_some() => shared.put(Source::Unread(source.take())),
                ContentProj::Reading { left: Some(0), recording, .. } if !shared.may_have_trailers => {
                    if let Some(whole) = recording.take() {
                        shared.put(Source::Whole(whole.finish()));
                    }
                }
                _ => {}
            }
        }
    }
}

pin_project! {
    #[project = ContentProj]
    enum Content<B> {
        // Not pinned, so that it can move to the next attempt. `None` once the attempt has started to read it.
        Unread { source: Option<B> },
        // `left` is the rest of the body's length, if the length is known. `recording` is `None` if the body is not
        // recorded, or exceeded the limit of the recording.
        Reading { #[pin] source: B, left: Option<u64>, recording: Option<Recording> },
        Replaying { recorded: Recorded },
    }
}

/// Creates the body for each further attempt of a call.
///
/// Once an attempt has read the body completely, further attempts can send it even while a connection still holds the
/// body of the earlier attempt. All bodies share the bytes of the recorded chunks.
pub(crate) struct Replay<B> {
    /// `None` for an empty body.
    shared: Option<Arc<Shared<B>>>,
}

impl<B> ReplayBody<B> {
    const ENDED: Self = Self { state: None };

    /// Creates a body that is not recorded.
    pub fn new(body: B) -> Self {
        Self::of(Content::Unread { source: Some(body) }, None)
    }

    fn of(content: Content<B>, shared: Option<Arc<Shared<B>>>) -> Self {
        let number = shared.as_ref().map_or(0, |shared| shared.next_number());
        Self { state: Some(Box::pin(State { content, rest: Bytes::new(), shared, number })) }
    }
}

impl<B: Body + 'static> ReplayBody<B> {
    /// Records `body` while it is sent, up to `limit` bytes of data and trailers. A body that can be created again is
    /// not recorded.
    ///
    /// An empty body needs no recording and can always be resent. `length` is the `content-length` of the request. A
    /// body of another length fails. Without a `content-length`, the length is that of the body's size hint.
    pub(crate) fn record(
        mut body: B,
        limit: usize,
        length: Option<u64>,
        may_have_trailers: bool,
        call: &CallContext,
    ) -> (Self, Replay<B>) {
        if body.is_end_stream() {
            return (Self::ENDED, Replay { shared: None });
        }
        let make = (&mut body as &mut dyn Any).downcast_mut().and_then(AnyBody::take_make);
        let (call, source) = (call.clone(), Mutex::new(Source::Unread(None)));
        let bodies = AtomicU32::new(0);
        let shared = Some(Arc::new(Shared { limit, length, may_have_trailers, make, call, source, bodies }));
        (Self::of(Content::Unread { source: Some(body) }, shared.clone()), Replay { shared })
    }
}

impl<B: 'static> Replay<B> {
    /// Returns the body again, from its start. A body that an attempt has read completely can be returned any number of
    /// times.
    ///
    /// An unread body is returned regardless of its size, and recorded while it is sent. A body of
    /// [`Body::from_fn`](crate::Body::from_fn) is created again once an attempt has read from it or still holds it.
    /// Returns `None` for any other body that was read or is still held, unless its recording is complete. Also returns
    /// `None` if the body failed.
    pub(crate) fn body(&self) -> Option<ReplayBody<B>> {
        let Some(shared) = &self.shared else { return Some(ReplayBody::ENDED) };
        let unread = match &mut *shared.lock() {
            Source::Unread(body) => body.take(),
            Source::Whole(recorded) if recorded.is_end() => return Some(ReplayBody::ENDED),
            Source::Whole(recorded) => {
                let recorded = recorded.clone();
                return Some(ReplayBody::of(Content::Replaying { recorded }, self.shared.clone()));
            }
            Source::Failed => return None,
        };
        // Calls the factory outside the lock, because it may run arbitrary code.
        let source = unread.or_else(|| take(&mut Some((shared.make.as_ref()?)())))?;
        Some(ReplayBody::of(Content::Unread { source: Some(source) }, self.shared.clone()))
    }
}

impl<B> Replay<B> {
    /// Returns whether [`body`](Self::body) returns a body.
    pub(crate) fn is_replayable(&self) -> bool {
        let Some(shared) = &self.shared else { return true };
        match &*shared.lock() {
            Source::Unread(body) => body.is_some() || shared.make.is_some(),
            Source::Whole(_) => true,
            Source::Failed => false,
        }
    }

    /// Returns whether the body returned an error. No further attempt follows such an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| matches!(*shared.lock(), Source::Failed))
    }
}

impl<B: Body<Error: Into<BoxError>>> Content<B> {
    /// Returns the next frame of a body that an attempt reads. `shared` is `None` for the body of an earlier attempt.
    fn poll(
        mut self: Pin<&mut Self>,
        shared: Option<&Shared<B>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let ContentProj::Unread { source } = self.as_mut().project() {
            if let Some(source) = source.take() {
                let hint = source.size_hint();
                let recording = shared.and_then(|shared| shared.recording(&hint));
                let left = shared.and_then(|shared| shared.length).or(hint.exact());
                self.set(Self::Reading { source, left, recording });
            }
        }
        let (mut source, left, recording) = match self.project() {
            ContentProj::Reading { source, left, recording } => (source, left, recording),
            ContentProj::Replaying { recorded } => return Poll::Ready(recorded.next().map(Ok)),
            ContentProj::Unread { .. } => return Poll::Ready(None),
        };
        // `copy_to_bytes` does not copy if the data is `Bytes`.
        let bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        let mut polled = ready!(source.as_mut().poll_frame(cx))
            .map(|frame| frame.map(|frame| frame.map_data(bytes)).map_err(Into::into));
        let (size, has_ended) = match &polled {
            Some(Ok(frame)) => {
                (frame.data_ref().map_or(0, Bytes::len), frame.is_trailers() || source.is_end_stream())
            }
            Some(Err(_)) | None => (0, true),
        };
        if !matches!(polled, Some(Err(_))) {
            polled = count(left, size, has_ended).err().map(Err).or(polled);
        }
        if let Some(Ok(frame)) = &polled {
            recording.take_if(|recording| !recording.push(frame));
        }
        let has_failed = matches!(polled, Some(Err(_)));
        // The whole body can be resent even if only a part of its last chunk was sent.
        if has_ended || has_failed {
            match (shared, recording.take()) {
                (Some(shared), _) if has_failed => shared.put(Source::Failed),
                (Some(shared), Some(recording)) => shared.put(Source::Whole(recording.finish())),
                _ => {}
            }
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Unread { source } => source.as_ref().is_none_or(Body::is_end_stream),
            Self::Reading { source, .. } => source.is_end_stream(),
            Self::Replaying { recorded } => recorded.is_end(),
        }
    }
}

/// Subtracts the size of a frame from the rest of the body's length. Returns an error if the body is longer or shorter.
/// hyper would truncate a longer body over HTTP/1, and would not compare the lengths over HTTP/2.
fn count(left: &mut Option<u64>, size: usize, has_ended: bool) -> Result<(), BoxError> {
    let Some(left) = left else { return Ok(()) };
    *left = left.checked_sub(size as u64).ok_or("body is longer than its announced length")?;
    if has_ended && *left > 0 {
        return Err(format!("body ended {left} bytes short of its announced length").into());
    }
    Ok(())
}

impl<B: Body<Error: Into<BoxError>>> Body for ReplayBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(state) = &mut this.state else { return Poll::Ready(None) };
        let mut state = state.as_mut().project();
        let shared = state.shared.as_deref().filter(|shared| shared.is_latest(*state.number));
        let mut polled = match mem::take(state.rest) {
            none if none.is_empty() => ready!(state.content.as_mut().poll(shared, cx)),
            rest => Some(Ok(Frame::data(rest))),
        };
        if let Some(data) = polled.as_mut().and_then(|frame| frame.as_mut().ok()?.data_mut()) {
            *state.rest = data.split_off(data.len().min(PART));
        }
        if let Some(shared) = shared {
            shared.call.body_advanced();
        }
        let has_ended = match &polled {
            Some(Ok(frame)) => frame.is_trailers() || state.content.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if has_ended && state.rest.is_empty() {
            // Drops the body, because some bodies must not be polled after their end.
            this.state = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.rest.is_empty() && state.content.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(state) = self.state.as_deref() else { return SizeHint::with_exact(0) };
        let content = match &state.content {
            Content::Unread { source } => source.as_ref().map(Body::size_hint).unwrap_or_default(),
            Content::Reading { source, .. } => source.size_hint(),
            Content::Replaying { recorded } => recorded.size_hint(),
        };
        content + SizeHint::with_exact(state.rest.len() as u64)
    }
}

/// Creates a body from these bytes, as if they had been recorded.
impl<B> From<Bytes> for ReplayBody<B> {
    fn from(data: Bytes) -> Self {
        if data.is_empty() {
            return Self::ENDED;
        }
        Self::of(Content::Replaying { recorded: Recorded::of(data) }, None)
    }
}

impl<B: Default> Default for ReplayBody<B> {
    fn default() -> Self {
        Self::new(B::default())
    }
}

/// Shows whether the body has ended, but never its content.
impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody").field("ended", &self.state.is_none()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
