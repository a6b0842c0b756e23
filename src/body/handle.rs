use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::{
    replay::ReplayBody,
    tape::{NotReplayable, Recording, Tape},
};

/// Gives the body of the next attempt, or says why there can be none.
///
/// It works while earlier bodies are still held by a connection, and shares the recorded chunks with them.
///
/// ```
/// use tower_outbound::{Body, body::{NotReplayable, ReplayBody}};
///
/// let (first, replay) = ReplayBody::record(Body::from("hello"), 1024);
/// assert_eq!(replay.body().unwrap_err(), NotReplayable::Incomplete);
/// drop(first); // no connection: nothing was read from it, so it can go again as it is
/// assert!(replay.body().is_ok());
/// ```
pub struct Replay<B> {
    /// `None` for a body without content.
    shared: Option<Arc<Shared<B>>>,
}

impl<B> Replay<B> {
    /// For a body without content.
    pub(super) fn empty() -> Self {
        Self { shared: None }
    }

    /// For `source`, which is given back as the first body to read; `out` says what one being read means to the next.
    /// `announced` is the length that goes before it on the wire, with nothing to follow.
    pub(super) fn new(
        source: B,
        limit: usize,
        announced: Option<u64>,
        out: NotReplayable,
    ) -> (Unread<B>, Self) {
        let shared = Arc::new(Shared::new(limit, announced, out));
        (Unread::new(source, Arc::clone(&shared)), Self { shared: Some(shared) })
    }

    /// The same body once more, from its start; any number of times once it was read whole.
    ///
    /// A body dropped before anything was read from it comes back as it was, whatever its size, and is recorded like the
    /// first; until it is read whole there is one of it at a time.
    ///
    /// # Errors
    ///
    /// [`NotReplayable`] says why the body can't be sent again.
    pub fn body(&self) -> Result<ReplayBody<B>, NotReplayable> {
        let Some(shared) = &self.shared else { return Ok(ReplayBody::ENDED) };
        let mut slot = shared.lock();
        match mem::replace(&mut *slot, Slot::Lost(shared.out)) {
            Slot::Back(source) => Ok(ReplayBody::unread(Unread::new(source, Arc::clone(shared)))),
            Slot::Whole(tape) => {
                *slot = Slot::Whole(tape.clone());
                Ok(ReplayBody::playing(tape))
            }
            Slot::Lost(why) => {
                *slot = Slot::Lost(why);
                Err(why)
            }
            Slot::Recording(recording) => {
                *slot = Slot::Recording(recording);
                Err(shared.out)
            }
        }
    }

    /// Whether the source has failed. No other body is given after that, so that it is the last one's failure.
    pub(crate) fn has_failed(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| matches!(*shared.lock(), Slot::Lost(NotReplayable::Failed)))
    }
}

impl<B> fmt::Debug for Replay<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("limit", &self.shared.as_ref().map(|s| s.limit))
            .finish_non_exhaustive()
    }
}

pub(super) struct Shared<B> {
    limit: usize,
    announced: Option<u64>,
    /// Why there is no other body while one is out.
    out: NotReplayable,
    slot: Mutex<Slot<B>>,
}

enum Slot<B> {
    Lost(NotReplayable),
    /// What one that is out has given so far. Here, for the request that carries it is moved from layer to layer.
    Recording(Recording),
    /// Came back without being read.
    Back(B),
    Whole(Tape),
}

impl<B> Shared<B> {
    fn new(limit: usize, announced: Option<u64>, out: NotReplayable) -> Self {
        Self { limit, announced, out, slot: Mutex::new(Slot::Lost(out)) }
    }

    /// Nothing can be half done under this lock, so that a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, Slot<B>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much was recorded, while it is.
    fn recorded(&self) -> Option<u64> {
        match &*self.lock() {
            Slot::Recording(recording) => Some(recording.len()),
            _ => None,
        }
    }

    /// What was recorded is the whole.
    fn finish(&self) {
        let mut slot = self.lock();
        *slot = match mem::replace(&mut *slot, Slot::Lost(self.out)) {
            Slot::Recording(recording) => Slot::Whole(recording.finish()),
            other => other,
        };
    }

    fn put(&self, slot: Slot<B>) {
        let old = mem::replace(&mut *self.lock(), slot);
        // Outside the lock: it may run a drop that is not ours.
        drop(old);
    }
}

/// Gives the source back when it is dropped before the first poll.
pub(super) struct Unread<B> {
    source: Option<B>,
    shared: Arc<Shared<B>>,
}

impl<B: Body> Unread<B> {
    /// Takes the source for reading, with the recorder of it, which keeps nothing when it is known to be too large.
    pub(super) fn start(&mut self) -> Option<(B, Recorder<B>)> {
        let source = self.source.take()?;
        let exact = source.size_hint().exact().is_some();
        let fits = self.shared.out == NotReplayable::Incomplete;
        if fits {
            self.shared.put(Slot::Recording(Recording::new(self.shared.limit, exact)));
        }
        Some((source, Recorder { shared: Arc::clone(&self.shared), recording: fits }))
    }
}

impl<B> Unread<B> {
    pub(super) fn new(source: B, shared: Arc<Shared<B>>) -> Self {
        Self { source: Some(source), shared }
    }

    /// The source, until it was started.
    pub(super) fn source(&self) -> Option<&B> {
        self.source.as_ref()
    }
}

impl<B> Drop for Unread<B> {
    fn drop(&mut self) {
        if let Some(source) = self.source.take() {
            self.shared.put(Slot::Back(source));
        }
    }
}

/// Dropped part way, it leaves `Incomplete` behind; dropped when all that was announced was read, the whole body, for
/// over HTTP/1 nobody asks whether there is more.
pub(super) struct Recorder<B> {
    shared: Arc<Shared<B>>,
    /// Not when it is decided what becomes of it, but for a failure, which is told all the same.
    recording: bool,
}

impl<B> Recorder<B> {
    pub(super) fn is_recording(&self) -> bool {
        self.recording
    }

    /// Itself, when there is more to come.
    pub(super) fn push(mut self, frame: &Frame<Bytes>, ended: bool) -> Option<Self> {
        let fits = match &mut *self.shared.lock() {
            Slot::Recording(recording) => recording.push(frame),
            _ => true,
        };
        if !fits {
            self.lose(NotReplayable::TooLarge { limit: self.shared.limit });
        }
        if ended {
            self.whole();
            return None;
        }
        Some(self)
    }

    pub(super) fn whole(mut self) {
        if mem::take(&mut self.recording) {
            self.shared.finish();
        }
    }

    pub(super) fn failed(mut self) {
        self.lose(NotReplayable::Failed);
    }

    fn lose(&mut self, why: NotReplayable) {
        self.recording = false;
        self.shared.put(Slot::Lost(why));
    }
}

impl<B> Drop for Recorder<B> {
    fn drop(&mut self) {
        if !self.recording {
            return;
        }
        match self.shared.recorded() == self.shared.announced {
            true => self.shared.finish(),
            false => self.lose(self.shared.out),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use http_body_util::{Empty, Full};

    use super::super::script::{Failure, Read, Script, Step, read, read_all};
    use super::*;

    #[test]
    fn nothing_to_send_allocates_nothing_and_is_always_there() {
        let counted = allocation_counter::measure(|| {
            let (first, replay) = ReplayBody::record(Empty::<Bytes>::new(), 0);
            assert_eq!((first.size_hint().exact(), first.is_end_stream()), (Some(0), true));
            assert_eq!(read_all(first), Read::default());
            assert!(replay.body().unwrap().is_end_stream());
        });
        assert_eq!(counted.count_total, 0);
    }

    #[test]
    fn one_chunk_costs_an_allocation_for_each_body_one_for_the_handle_and_no_copy() {
        let data = Bytes::from(vec![3; 1000]);
        let cx = &mut Context::from_waker(Waker::noop());
        let counted = allocation_counter::measure(|| {
            let (mut first, replay) = ReplayBody::record(Full::new(data.clone()), 1000);
            assert_eq!(first.size_hint().exact(), Some(1000));
            assert!(Pin::new(&mut first).poll_frame(cx).is_ready());
            assert!(first.is_end_stream());
            let mut second = replay.body().unwrap();
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut second).poll_frame(cx) else {
                panic!("no frame")
            };
            assert_eq!(frame.data_ref().unwrap().as_ptr(), data.as_ptr());
        });
        // `Bytes` made from a `Vec` allocates its count at the first clone.
        assert!(counted.count_total <= 4, "{counted:?}");
    }

    #[test]
    fn unread_it_comes_back_whatever_its_size() {
        let (first, replay) = ReplayBody::record(Full::<Bytes>::from("hello"), 1);
        assert_eq!(replay.body().unwrap_err(), NotReplayable::TooLarge { limit: 1 });
        drop(first);
        let second = replay.body().unwrap();
        assert_eq!(replay.body().unwrap_err(), NotReplayable::TooLarge { limit: 1 });
        assert_eq!(second.size_hint().exact(), Some(5));
        assert_eq!(read_all(second).data, b"hello");
        assert_eq!(replay.body().unwrap_err(), NotReplayable::TooLarge { limit: 1 });
    }

    #[test]
    fn unread_it_is_recorded_the_next_time() {
        let (first, replay) = ReplayBody::record(Script::new([Step::data(3)]), 10);
        drop(first);
        assert_eq!(read_all(replay.body().unwrap()).data, [0, 1, 2]);
        assert_eq!(read_all(replay.body().unwrap()).data, [0, 1, 2]);
    }

    #[test]
    fn a_part_is_not_sent_as_the_whole() {
        let (first, replay) = ReplayBody::record(Script::new([Step::data(3), Step::data(3)]), 10);
        let mut first = Box::pin(first);
        assert_eq!(read(first.as_mut(), 1).data.len(), 3);
        assert_eq!(replay.body().unwrap_err(), NotReplayable::Incomplete);
        drop(first);
        assert_eq!(replay.body().unwrap_err(), NotReplayable::Incomplete);
    }

    #[test]
    fn over_the_limit_the_memory_is_given_back_and_the_body_goes_on() {
        let data = Bytes::from(vec![3; 8]);
        let frames =
            [data.clone(), Bytes::from_static(b"0123456789")].map(|d| Ok::<_, Failure>(Frame::data(d)));
        let source = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let (first, replay) = ReplayBody::record(source, 10);
        let mut first = Box::pin(first);
        drop(read(first.as_mut(), 1));
        assert!(!data.is_unique());
        assert_eq!(read(first.as_mut(), 1).data.len(), 10);
        assert!(data.is_unique());
        assert_eq!(replay.body().unwrap_err(), NotReplayable::TooLarge { limit: 10 });
    }

    #[test]
    fn a_failure_is_told_also_where_nothing_is_recorded() {
        let steps = [Step::data(3), Step::Fail];
        for (limit, known) in [(10, false), (1, false), (1, true)] {
            let source = Script::new(steps.clone());
            let source = if known { source.knowing_its_size() } else { source };
            let (first, replay) = ReplayBody::record(source, limit);
            let mut first = Box::pin(first);
            drop(read(first.as_mut(), 1));
            assert!(!replay.has_failed(), "{limit} {known}");
            assert!(read(first.as_mut(), 1).failed);
            assert!(replay.has_failed(), "{limit} {known}");
            drop(first);
            assert!(replay.has_failed(), "{limit} {known}");
            assert_eq!(replay.body().unwrap_err(), NotReplayable::Failed);
        }
        let (first, replay) = ReplayBody::record(Script::new([Step::data(3)]), 1);
        drop(read_all(first));
        assert!(!replay.has_failed() && !Replay::<Script>::empty().has_failed());
    }
}
