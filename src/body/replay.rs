use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    handle::{Recorder, Replay, Unread},
    tape::{NotReplayable, Tape},
};

/// Records up to 1 MiB of a call's request body.
///
/// Most bodies sent to an API are in memory already: recording them copies nothing, it only holds them until the call
/// ends. So the number bounds what a stream may hold: 100 calls at once hold 100 MiB at the worst.
pub const DEFAULT_REPLAY_LIMIT: usize = 1024 * 1024;

/// Hands a request's body on unchanged, recording it up to a cap so that the same request can be sent again.
///
/// Made by [`record`](Self::record), or by `From`, and then it only passes on and records nothing. Chunks are
/// recorded as they are sent, trailers too; `Bytes` are kept by reference count, and only chunks under 64 bytes that
/// follow another are copied. Over the cap the recording is dropped at once and the body goes on.
///
/// One word wide: what it carries is behind a pointer, but for a recorded body without content, which is nothing.
///
/// Once it has ended or failed, it stays at its end. Trailers are the end.
///
/// ```
/// use http_body::Body as _;
/// use tower_outbound::{Body, body::ReplayBody};
///
/// let (first, _replay) = ReplayBody::record(Body::from("hello"), 1024);
/// assert_eq!(first.size_hint().exact(), Some(5));
/// let passed_on_only = ReplayBody::from(Body::from("hello"));
/// ```
///
/// # Default
///
/// The default `B`, not recorded.
pub struct ReplayBody<B> {
    /// A request is moved some thirty times on its way through a stack and hyper, and what has 256 bytes or more costs
    /// twice as much to copy. None at its end.
    state: Option<Pin<Box<State<B>>>>,
}

pin_project! {
    #[project = Proj]
    enum State<B> {
        // Not pinned yet, so that it can go back to the handle when nothing was read from it.
        Unread { unread: Unread<B> },
        Reading {
            #[pin]
            source: B,
            recorder: Option<Recorder<B>>,
        },
        Playing { tape: Tape },
    }
}

impl<B: Body> ReplayBody<B> {
    /// Records `body` while it is sent, at most `limit` bytes of data and trailers, and gives the handle for sending it
    /// again.
    ///
    /// A body without content costs nothing and can always be sent again. One that announces more than `limit` bytes is
    /// never recorded; [`DEFAULT_REPLAY_LIMIT`] is a good limit.
    pub fn record(body: B, limit: usize) -> (Self, Replay<B>) {
        Self::record_announced(body, limit, None)
    }

    /// The same for a body of this length with no trailers after it: whoever has read so much has read all of it, even
    /// if it did not ask whether there is more.
    pub(crate) fn record_announced(body: B, limit: usize, announced: Option<u64>) -> (Self, Replay<B>) {
        if body.is_end_stream() {
            return (Self::ENDED, Replay::empty());
        }
        let least = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let out = match least > limit {
            true => NotReplayable::TooLarge { limit },
            false => NotReplayable::Incomplete,
        };
        let (unread, replay) = Replay::new(body, limit, announced, out);
        (Self::unread(unread), replay)
    }
}

impl<B> ReplayBody<B> {
    pub(super) const ENDED: Self = Self { state: None };

    pub(super) fn unread(unread: Unread<B>) -> Self {
        Self::of(State::Unread { unread })
    }

    pub(super) fn playing(tape: Tape) -> Self {
        if tape.is_end() { Self::ENDED } else { Self::of(State::Playing { tape }) }
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
        if let Proj::Unread { unread } = state.as_mut().project() {
            if let Some((source, recorder)) = unread.start() {
                state.set(State::Reading { source, recorder: Some(recorder) });
            }
        }
        let (polled, ended) = match state.as_mut().project() {
            Proj::Reading { mut source, recorder } => {
                let polled = ready!(source.as_mut().poll_frame(cx));
                let taken = recorder.take();
                match polled {
                    Some(Ok(frame)) => {
                        // Free for `Bytes`.
                        let frame = frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
                        let ended = frame.is_trailers() || source.is_end_stream();
                        *recorder = taken.and_then(|recorder| recorder.push(&frame, ended));
                        (Some(Ok(frame)), ended)
                    }
                    Some(Err(error)) => {
                        taken.into_iter().for_each(Recorder::failed);
                        (Some(Err(error)), true)
                    }
                    None => {
                        taken.into_iter().for_each(Recorder::whole);
                        (None, true)
                    }
                }
            }
            Proj::Playing { tape } => (tape.next().map(Ok), tape.is_end()),
            // Started above, which it is once.
            Proj::Unread { .. } => (None, true),
        };
        if ended {
            // Not every body can be polled after its end.
            this.state = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        match self.state.as_deref() {
            Some(State::Unread { unread }) => unread.source().is_none_or(Body::is_end_stream),
            Some(State::Reading { source, .. }) => source.is_end_stream(),
            Some(State::Playing { tape }) => tape.is_end(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.state.as_deref() {
            Some(State::Unread { unread }) => unread.source().map(Body::size_hint).unwrap_or_default(),
            Some(State::Reading { source, .. }) => source.size_hint(),
            Some(State::Playing { tape }) => tape.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Passes `body` on without recording it.
impl<B> From<B> for ReplayBody<B> {
    fn from(source: B) -> Self {
        Self::of(State::Reading { source, recorder: None })
    }
}

impl<B: Default> Default for ReplayBody<B> {
    fn default() -> Self {
        Self::from(B::default())
    }
}

/// Shows what it does, never the content.
impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state.as_deref() {
            Some(State::Unread { .. }) => "unread",
            Some(State::Reading { recorder: Some(recorder), .. }) if recorder.is_recording() => "recording",
            Some(State::Reading { .. }) => "passing",
            Some(State::Playing { .. }) => "playing",
            None => "ended",
        };
        f.debug_struct("ReplayBody").field("state", &state).finish()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use proptest::prelude::*;

    use super::super::script::{Read, Script, Step, read, read_all};
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
        fn every_pass_is_the_same_or_the_reason_is_right(
            steps in steps(), limit in 0..500_usize, cut in prop_oneof![Just(usize::MAX), 0..8_usize],
            knows_end: bool, knows_size: bool,
        ) {
            // What a reader sees: up to the first failure.
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
            let (first, replay) = ReplayBody::record(source, limit);
            let ended = {
                let mut first = std::pin::pin!(first);
                let pass = read(first.as_mut(), cut);
                if cut == usize::MAX {
                    prop_assert_eq!(&pass, &sent);
                }
                first.is_end_stream()
            };
            match replay.body() {
                Ok(second) if given.get() == 0 && !ended => {
                    prop_assert_eq!(cut, 0);
                    prop_assert_eq!(read_all(second), sent);
                }
                Ok(second) => {
                    prop_assert!(total <= limit && !sent.failed && ended);
                    if sent.trailers.is_none() {
                        prop_assert_eq!(second.size_hint().exact(), Some(sent.data.len() as u64));
                    } else {
                        prop_assert_eq!(second.size_hint().lower(), sent.data.len() as u64);
                    }
                    // Two at once, frame by frame, then a third.
                    let third = replay.body().unwrap();
                    let (mut second, mut third) = (std::pin::pin!(second), std::pin::pin!(third));
                    let half = (read(second.as_mut(), 1), read(third.as_mut(), 1));
                    prop_assert_eq!(half.0, half.1);
                    prop_assert_eq!(read(second, usize::MAX), read(third, usize::MAX));
                    prop_assert_eq!(read_all(replay.body().unwrap()), sent);
                }
                Err(NotReplayable::TooLarge { limit: l }) => {
                    prop_assert!(l == limit && total.max(announced) > limit);
                }
                Err(NotReplayable::Failed) => prop_assert!(sent.failed),
                Err(NotReplayable::Incomplete) => prop_assert!(cut < usize::MAX && !ended),
            }
        }
    }

    #[test]
    fn from_only_passes_on() {
        let passed = read_all(ReplayBody::from(Script::new([Step::data(2), Step::Fail])));
        assert_eq!((passed.data.len(), passed.failed), (2, true));
        assert_eq!(read_all(ReplayBody::<Full<Bytes>>::default()), Read::default());
    }
}
