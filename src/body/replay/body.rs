use std::{
    fmt,
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

/// The request body below a [`retry`](crate::retry) layer, which can resend it.
///
/// The first attempt sends the body unchanged and records it, up to the [replay limit]. Further attempts send the
/// recording. Chunks under 64 bytes, except for the first chunk, are copied and merged. Any other chunk of type `Bytes`
/// is recorded without a copy. If the body exceeds the limit, the recording is dropped and the attempt continues.
///
/// [`new`](Self::new) creates a body that is not recorded.
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
        },
        Playing { recorded: Recorded },
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

    pub(super) fn playing(recorded: Recorded) -> Self {
        if recorded.is_end() { Self::ENDED } else { Self::of(State::Playing { recorded }) }
    }

    /// Creates a body that is not recorded.
    pub fn new(body: B) -> Self {
        Self::of(State::Reading { source: body, recording: None, shared: None })
    }

    fn of(state: State<B>) -> Self {
        Self { state: Some(Box::pin(state)) }
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
                state.set(State::Reading { source, recording, shared });
            }
        }
        let (polled, ended) = match state.as_mut().project() {
            Proj::Reading { mut source, recording, shared } => {
                // `copy_to_bytes` does not copy if the data is `Bytes`.
                let bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
                let polled = ready!(source.as_mut().poll_frame(cx));
                let polled = polled.map(|frame| frame.map(|frame| frame.map_data(bytes)));
                let ended = match &polled {
                    Some(Ok(frame)) => {
                        recording.take_if(|recording| !recording.push(frame));
                        frame.is_trailers() || source.is_end_stream()
                    }
                    Some(Err(_)) | None => true,
                };
                if let (Some(shared), true) = (shared, ended) {
                    match (&polled, recording.take()) {
                        (Some(Err(_)), _) => shared.put(Source::Failed),
                        (_, Some(recording)) => shared.put(Source::Whole(recording.finish())),
                        _ => {}
                    }
                }
                (polled, ended)
            }
            Proj::Playing { recorded } => (recorded.next().map(Ok), recorded.is_end()),
            // Unreachable, because the code above has already changed this state to `Reading`.
            Proj::Unread { .. } => (None, true),
        };
        if ended {
            // Drops the body, because some bodies must not be polled after their end.
            this.state = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        match self.state.as_deref() {
            Some(State::Unread { source, .. }) => source.as_ref().is_none_or(Body::is_end_stream),
            Some(State::Reading { source, .. }) => source.is_end_stream(),
            Some(State::Playing { recorded }) => recorded.is_end(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.state.as_deref() {
            Some(State::Unread { source, .. }) => source.as_ref().map(Body::size_hint).unwrap_or_default(),
            Some(State::Reading { source, .. }) => source.size_hint(),
            Some(State::Playing { recorded }) => recorded.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Creates a body from these bytes, as if they had been recorded.
impl<B> From<Bytes> for ReplayBody<B> {
    fn from(data: Bytes) -> Self {
        Self::playing(Recorded::of(data))
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
mod tests {
    use http_body_util::Full;
    use proptest::prelude::*;

    use super::super::super::test_body::{Read, Script, Step, read, read_all};
    use super::*;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Step::Data),
            3 => Just(Step::Wait),
            1 => Just(Step::Fail),
        ];
        let trailers = prop::option::of((0..20_usize).prop_map(Step::trailers));
        (prop::collection::vec(step, 0..8), trailers).prop_map(|(mut steps, trailers)| {
            steps.extend(trailers);
            steps
        })
    }

    proptest! {
        #[test]
        fn every_replay_is_complete_or_unavailable(
            steps in steps(), limit in 0..500_usize, cut in prop_oneof![Just(usize::MAX), 0..8_usize],
            knows_end: bool, knows_size: bool,
        ) {
            // The data and trailers that the first reader receives, up to the first failure.
            let mut sent = Read::default();
            for step in &steps {
                match step {
                    Step::Data(data) => sent.data.extend_from_slice(data),
                    Step::Trailers(trailers) => sent.trailers = Some(trailers.clone()),
                    Step::Wait => {}
                    Step::Fail => { sent.failed = true; break }
                }
            }
            let trailers = sent.trailers.as_ref().and_then(|t| t.get("x-sum")).map_or(0, |v| 5 + v.len());
            let total = sent.data.len() + trailers;
            let source = Script::new(steps);
            let source = if knows_end { source.knowing_its_end() } else { source };
            let source = if knows_size { source.knowing_its_size() } else { source };
            let given = source.given();
            let announced = usize::try_from(source.size_hint().lower()).unwrap();
            let (first, replay) = ReplayBody::record(source, limit, None);
            let ended = {
                let mut first = std::pin::pin!(first);
                let pass = read(first.as_mut(), cut);
                if cut == usize::MAX {
                    prop_assert_eq!(&pass, &sent);
                }
                first.is_end_stream()
            };
            match replay.body() {
                Some(second) if given.get() == 0 && !ended => {
                    prop_assert_eq!(cut, 0);
                    prop_assert_eq!(read_all(second), sent);
                }
                Some(second) => {
                    prop_assert!(total <= limit && !sent.failed && ended);
                    if sent.trailers.is_none() {
                        prop_assert_eq!(second.size_hint().exact(), Some(sent.data.len() as u64));
                    } else {
                        prop_assert_eq!(second.size_hint().lower(), sent.data.len() as u64);
                    }
                    // Reads two replayed bodies alternately, frame by frame, and then a third one.
                    let third = replay.body().unwrap();
                    let (mut second, mut third) = (std::pin::pin!(second), std::pin::pin!(third));
                    let half = (read(second.as_mut(), 1), read(third.as_mut(), 1));
                    prop_assert_eq!(half.0, half.1);
                    prop_assert_eq!(read(second, usize::MAX), read(third, usize::MAX));
                    prop_assert_eq!(read_all(replay.body().unwrap()), sent);
                }
                None => {
                    let too_large = total.max(announced) > limit;
                    prop_assert!(too_large || sent.failed || cut < usize::MAX && !ended);
                }
            }
        }
    }

    #[test]
    fn unrecorded_body_returns_the_data_and_the_error_of_its_source() {
        let passed = read_all(ReplayBody::new(Script::new([Step::data(2), Step::Fail])));
        assert_eq!((passed.data.len(), passed.failed), (2, true));
        assert_eq!(read_all(ReplayBody::<Full<Bytes>>::default()), Read::default());
    }
}
