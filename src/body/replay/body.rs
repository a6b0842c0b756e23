use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    recording::{Recorded, Recording},
    shared::{Shared, Source},
};

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
/// Each frame that an attempt takes restarts the [attempt timeout](crate::timeout::AttemptTimeoutLayer). A chunk
/// of more than 64 KiB is therefore sent in parts.
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
/// - A recorded chunk that is part of a larger buffer keeps that buffer in memory until the call ends.
/// - A body that an attempt has read only in part cannot be resent. A body of which nothing was read can be resent
///   regardless of its size, for example after a connect error.
pub struct ReplayBody<B> {
    /// `None` at the end of the body. The state is boxed, because it would make requests large. A stack and hyper move
    /// a request about thirty times, and moving 256 bytes or more costs twice as much as moving a smaller value.
    state: Option<Pin<Box<State<B>>>>,
}

pin_project! {
    #[project = Proj]
    enum State<B> {
        // `source` is `None` once an attempt has started to read the body. Before that, the body is not pinned, so that
        // it can move to the next attempt.
        Unread { source: Option<B>, shared: Arc<Shared<B>> },
        Reading {
            #[pin]
            source: B,
            // `None` if the body is not recorded, or exceeded the limit of the recording.
            recording: Option<Recording>,
            shared: Option<Arc<Shared<B>>>,
            // The rest of a large chunk, which is sent in parts.
            rest: Bytes,
        },
        Playing { recorded: Recorded, shared: Option<Arc<Shared<B>>> },
    }

    // Over HTTP/1, hyper stops reading the body at the announced length, before the body reports its end. A recording
    // of that length is therefore treated as complete. Any other body that was read in part cannot be resent.
    impl<B> PinnedDrop for State<B> {
        fn drop(this: Pin<&mut Self>) {
            match this.project() {
                Proj::Unread { source, shared } if source.is_some() => shared.put(Source::Unread(source.take())),
                Proj::Reading { recording, shared: Some(shared), .. } => {
                    if let Some(whole) = recording.take_if(|recording| Some(recording.len()) == shared.announced) {
                        shared.put(Source::Whole(whole.finish()));
                    }
                }
                _ => {}
            }
        }
    }
}

impl<B> ReplayBody<B> {
    pub(super) const ENDED: Self = Self { state: None };

    pub(super) fn unread(source: B, shared: Arc<Shared<B>>) -> Self {
        Self::of(State::Unread { source: Some(source), shared })
    }

    pub(super) fn playing(recorded: Recorded, shared: Option<Arc<Shared<B>>>) -> Self {
        if recorded.is_end() { Self::ENDED } else { Self::of(State::Playing { recorded, shared }) }
    }

    /// Creates a body that is not recorded.
    pub fn new(body: B) -> Self {
        Self::of(State::Reading { source: body, recording: None, shared: None, rest: Bytes::new() })
    }

    fn of(state: State<B>) -> Self {
        Self { state: Some(Box::pin(state)) }
    }
}

/// Records a frame in the parts in which it is sent. Returns `false` if the recording is too long.
fn record(recording: &mut Recording, frame: &Frame<Bytes>) -> bool {
    match frame.data_ref() {
        Some(data) if data.len() > PART => {
            data.chunks(PART).all(|part| recording.push(&Frame::data(data.slice_ref(part))))
        }
        _ => recording.push(frame),
    }
}

/// Returns at most the first [`PART`] bytes of a frame, and moves the others to `rest`.
fn first_part(frame: Frame<Bytes>, rest: &mut Bytes) -> Frame<Bytes> {
    match frame.into_data() {
        Ok(mut data) => {
            *rest = data.split_off(data.len().min(PART));
            Frame::data(data)
        }
        Err(trailers) => trailers,
    }
}

impl<B: Body> Body for ReplayBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let Some(state) = &mut this.state else { return Poll::Ready(None) };
        if let Proj::Unread { source, shared } = state.as_mut().project() {
            if let Some(source) = source.take() {
                let (recording, shared) = (shared.recording(&source), Some(Arc::clone(shared)));
                state.set(State::Reading { source, recording, shared, rest: Bytes::new() });
            }
        }
        let (polled, ended, shared) = match state.as_mut().project() {
            Proj::Reading { mut source, recording, shared, rest } => {
                // `copy_to_bytes` does not copy if the data is `Bytes`.
                let bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
                let polled = match mem::take(rest) {
                    none if none.is_empty() => {
                        let polled = ready!(source.as_mut().poll_frame(cx))
                            .map(|frame| frame.map(|frame| frame.map_data(bytes)));
                        // Records the whole frame, so that bytes in memory can be resent after a part of them was sent.
                        if let Some(Ok(frame)) = &polled {
                            recording.take_if(|recording| !record(recording, frame));
                        }
                        polled
                    }
                    rest => Some(Ok(Frame::data(rest))),
                };
                let polled = polled.map(|frame| frame.map(|frame| first_part(frame, rest)));
                let is_read = match &polled {
                    Some(Ok(frame)) => frame.is_trailers() || source.is_end_stream(),
                    Some(Err(_)) | None => true,
                };
                if let (Some(shared), true) = (&*shared, is_read) {
                    match (&polled, recording.take()) {
                        (Some(Err(_)), _) => shared.put(Source::Failed),
                        (_, Some(recording)) => shared.put(Source::Whole(recording.finish())),
                        _ => {}
                    }
                }
                (polled, is_read && rest.is_empty(), shared.as_ref())
            }
            Proj::Playing { recorded, shared } => {
                (recorded.next().map(Ok), recorded.is_end(), shared.as_ref())
            }
            // Unreachable, because the code above has already changed this state to `Reading`.
            Proj::Unread { .. } => (None, true, None),
        };
        if let Some(shared) = shared {
            shared.call.body_advanced();
        }
        if ended {
            // Drops the body, because some bodies must not be polled after their end.
            this.state = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        match self.state.as_deref() {
            Some(State::Unread { source, .. }) => source.as_ref().is_none_or(Body::is_end_stream),
            Some(State::Reading { source, rest, .. }) => rest.is_empty() && source.is_end_stream(),
            Some(State::Playing { recorded, .. }) => recorded.is_end(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.state.as_deref() {
            Some(State::Unread { source, .. }) => source.as_ref().map(Body::size_hint).unwrap_or_default(),
            Some(State::Reading { source, rest, .. }) => {
                source.size_hint() + SizeHint::with_exact(rest.len() as u64)
            }
            Some(State::Playing { recorded, .. }) => recorded.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Creates a body from these bytes, as if they had been recorded.
impl<B> From<Bytes> for ReplayBody<B> {
    fn from(data: Bytes) -> Self {
        Self::playing(Recorded::of(data), None)
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
