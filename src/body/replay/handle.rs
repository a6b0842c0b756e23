use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use http_body::Body;

use super::{
    super::body::Body as AnyBody,
    body::ReplayBody,
    shared::{Shared, Source},
};
use crate::call::CallContext;

/// Creates the body for each further attempt of a call.
///
/// Once an attempt has read the body completely, further attempts can send it even while a connection still holds the
/// body of the earlier attempt. All bodies share the recorded chunks.
pub(crate) struct Replay<B> {
    /// `None` for an empty body.
    shared: Option<Arc<Shared<B>>>,
}

impl<B: Body + 'static> ReplayBody<B> {
    /// Records `body` while it is sent, up to `limit` bytes of data and trailers. A body that can be created again is
    /// not recorded.
    ///
    /// An empty body needs no recording and can always be resent. `announced` is the length of the body that the
    /// request announces to the server. It is `None` if the length is unknown or trailers may follow the body.
    pub(crate) fn record(
        mut body: B,
        limit: usize,
        announced: Option<u64>,
        call: &CallContext,
    ) -> (Self, Replay<B>) {
        if body.is_end_stream() {
            return (Self::ENDED, Replay { shared: None });
        }
        let make = (&mut body as &mut dyn Any).downcast_mut().and_then(AnyBody::take_make);
        let (call, source) = (call.clone(), Mutex::new(Source::Unread(None)));
        let shared = Arc::new(Shared { limit, announced, make, call, source });
        (Self::unread(body, Arc::clone(&shared)), Replay { shared: Some(shared) })
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
            Source::Whole(recorded) => {
                return Some(ReplayBody::playing(recorded.clone(), Some(Arc::clone(shared))));
            }
            Source::Failed => return None,
        };
        // Calls the factory outside the lock, because it may run arbitrary code.
        unread.or_else(|| shared.remake()).map(|body| ReplayBody::unread(body, Arc::clone(shared)))
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

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::{Empty, Full};

    use super::super::super::test_body::{Failure, Read, Script, Step, call, read, read_all};
    use super::*;

    #[test]
    fn empty_body_is_resent_without_an_allocation() {
        let call = call();
        let counted = allocation_counter::measure(|| {
            let (first, replay) = ReplayBody::record(Empty::<Bytes>::new(), 0, None, &call);
            assert_eq!((first.size_hint().exact(), first.is_end_stream()), (Some(0), true));
            assert_eq!(read_all(first), Read::default());
            assert!(replay.body().unwrap().is_end_stream());
        });
        assert_eq!(counted.count_total, 0);
    }

    #[test]
    fn one_chunk_is_replayed_with_at_most_four_allocations_and_no_copy() {
        let data = Bytes::from(vec![3; 1000]);
        let (cx, call) = (&mut Context::from_waker(Waker::noop()), call());
        let counted = allocation_counter::measure(|| {
            let (mut first, replay) = ReplayBody::record(Full::new(data.clone()), 1000, None, &call);
            assert_eq!(first.size_hint().exact(), Some(1000));
            assert!(Pin::new(&mut first).poll_frame(cx).is_ready());
            assert!(first.is_end_stream());
            let mut second = replay.body().unwrap();
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut second).poll_frame(cx) else {
                panic!("the replayed body returned no frame")
            };
            assert_eq!(frame.data_ref().unwrap().as_ptr(), data.as_ptr());
        });
        // `Bytes` made from a `Vec` allocates a reference count at the first clone.
        assert!(counted.count_total <= 4, "{counted:?}");
    }

    #[test]
    fn unread_body_of_any_size_is_replayed() {
        let (first, replay) = ReplayBody::record(Full::<Bytes>::from("hello"), 1, None, &call());
        assert!(replay.body().is_none());
        drop(first);
        let second = replay.body().unwrap();
        assert!(replay.body().is_none());
        assert_eq!(second.size_hint().exact(), Some(5));
        assert_eq!(read_all(second).data, b"hello");
        assert!(replay.body().is_none());
    }

    #[test]
    fn unread_body_is_recorded_in_the_next_attempt() {
        let (first, replay) = ReplayBody::record(Script::new([Step::data(3)]), 10, None, &call());
        drop(first);
        assert_eq!(read_all(replay.body().unwrap()).data, [0, 1, 2]);
        assert_eq!(read_all(replay.body().unwrap()).data, [0, 1, 2]);
    }

    #[test]
    fn body_that_was_read_in_part_is_not_replayed() {
        let (first, replay) =
            ReplayBody::record(Script::new([Step::data(3), Step::data(3)]), 10, None, &call());
        let mut first = Box::pin(first);
        assert_eq!(read(first.as_mut(), 1).data.len(), 3);
        assert!(replay.body().is_none());
        drop(first);
        assert!(replay.body().is_none());
    }

    #[test]
    fn body_over_the_replay_limit_is_sent_without_a_recording() {
        let data = Bytes::from(vec![3; 8]);
        let frames =
            [data.clone(), Bytes::from_static(b"0123456789")].map(|d| Ok::<_, Failure>(Frame::data(d)));
        let source = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let (first, replay) = ReplayBody::record(source, 10, None, &call());
        let mut first = Box::pin(first);
        drop(read(first.as_mut(), 1));
        assert!(!data.is_unique());
        assert_eq!(read(first.as_mut(), 1).data.len(), 10);
        assert!(data.is_unique());
        assert!(replay.body().is_none());
    }

    #[test]
    fn failure_of_an_unrecorded_body_is_reported() {
        let steps = [Step::data(3), Step::Fail];
        for (limit, known) in [(10, false), (1, false), (1, true)] {
            let source = Script::new(steps.clone());
            let source = if known { source.knowing_its_size() } else { source };
            let (first, replay) = ReplayBody::record(source, limit, None, &call());
            let mut first = Box::pin(first);
            drop(read(first.as_mut(), 1));
            assert!(!replay.has_failed(), "{limit} {known}");
            assert!(read(first.as_mut(), 1).failed);
            assert!(replay.has_failed(), "{limit} {known}");
            drop(first);
            assert!(replay.has_failed(), "{limit} {known}");
            assert!(replay.body().is_none());
        }
        let (first, replay) = ReplayBody::record(Script::new([Step::data(3)]), 1, None, &call());
        drop(read_all(first));
        assert!(!replay.has_failed() && !Replay::<Script> { shared: None }.has_failed());
    }

    #[test]
    fn body_with_a_factory_is_created_again_for_each_attempt_and_not_recorded() {
        let made = Arc::new(Mutex::new(0));
        let count = Arc::clone(&made);
        let body = AnyBody::from_fn(move || {
            *count.lock().unwrap() += 1;
            "hello"
        });
        let (first, replay) = ReplayBody::record(body, 1, None, &call());
        assert_eq!(first.size_hint().exact(), Some(5));
        // An unread body is used before another one is created.
        drop(first);
        let mut first = Box::pin(replay.body().unwrap());
        assert_eq!((read(first.as_mut(), 1).data, *made.lock().unwrap()), (b"hello".to_vec(), 1));
        // The previous attempt still holds its body.
        let second = replay.body().unwrap();
        assert_eq!((second.size_hint().exact(), *made.lock().unwrap()), (Some(5), 2));
        assert_eq!(read_all(second).data, b"hello");
        assert!(matches!(&*replay.shared.as_ref().unwrap().lock(), Source::Unread(None)));
    }

    #[test]
    fn body_with_a_factory_is_not_created_again_after_an_error() {
        let body =
            AnyBody::from_fn(|| AnyBody::new(ReplayBody::new(Script::new([Step::data(3), Step::Fail]))));
        let (first, replay) = ReplayBody::record(body, 10, None, &call());
        assert!(read_all(first).failed);
        assert!(replay.has_failed() && replay.body().is_none());
    }
}
