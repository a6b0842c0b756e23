use std::{task::Waker, time::Duration};

use http_body_util::{Empty, Full};
use proptest::prelude::*;
use tokio::time::Instant;

use super::super::test_body::{Failure, Read, Script, Step, call, read, read_all};
use super::*;

mod lengths;

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
        let (first, replay) = ReplayBody::record(source, limit, None, true, &call());
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

#[test]
fn bytes_in_memory_can_be_resent_after_a_part_of_them_was_sent() {
    let data = Bytes::from(vec![7; 2 * PART]);
    let (first, replay) = ReplayBody::record(Full::new(data.clone()), usize::MAX, None, false, &call());
    let mut first = Box::pin(first);
    assert_eq!(read(first.as_mut(), 1).data.len(), PART);
    assert_eq!(read_all(replay.body().unwrap()).data, data);
    drop(first);
    assert_eq!(read_all(replay.body().unwrap()).data, data);
}

#[test]
fn large_chunk_is_sent_and_replayed_in_parts() {
    let data = Bytes::from((0..2 * PART as u32 + 3).map(|at| (at >> 3) as u8).collect::<Vec<_>>());
    let (first, replay) = ReplayBody::record(Full::new(data.clone()), usize::MAX, None, false, &call());
    let mut first = Box::pin(first);
    for (len, left) in [(PART, PART + 3), (PART, 3), (3, 0)] {
        assert_eq!(read(first.as_mut(), 1).data.len(), len);
        assert_eq!((first.size_hint().exact(), first.is_end_stream()), (Some(left as u64), left == 0));
    }
    for _ in 0..2 {
        let mut again = Box::pin(replay.body().unwrap());
        assert_eq!(read(again.as_mut(), 1).data.len(), PART);
        assert!(read(again.as_mut(), usize::MAX).data == data[PART..]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_frame_and_the_end_of_a_body_are_progress() {
    let (call, cx) = (call(), &mut Context::from_waker(Waker::noop()));
    let steps = [Step::data(100), Step::Wait, Step::data(100)];
    let (first, replay) = ReplayBody::record(Script::new(steps), 1_000, None, false, &call);
    let mut first = Some(first);
    for advances in [vec![true, false, true, true, false], vec![true, true, false]] {
        let mut body = first.take().or_else(|| replay.body()).unwrap();
        for (poll, advances) in advances.into_iter().enumerate() {
            tokio::time::advance(Duration::from_secs(1)).await;
            let _ = Pin::new(&mut body).poll_frame(cx);
            assert_eq!(call.body_progress() == Instant::now(), advances, "poll {poll}");
        }
    }
}

#[test]
fn empty_body_is_resent_without_an_allocation() {
    let call = call();
    let counted = allocation_counter::measure(|| {
        let (first, replay) = ReplayBody::record(Empty::<Bytes>::new(), 0, None, false, &call);
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
        let (mut first, replay) = ReplayBody::record(Full::new(data.clone()), 1000, None, false, &call);
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
    let (first, replay) = ReplayBody::record(Full::<Bytes>::from("hello"), 1, None, false, &call());
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
    let (first, replay) = ReplayBody::record(Script::new([Step::data(3)]), 10, None, false, &call());
    drop(first);
    assert_eq!(read_all(replay.body().unwrap()).data, [0, 1, 2]);
    assert_eq!(read_all(replay.body().unwrap()).data, [0, 1, 2]);
}

#[test]
fn body_over_the_replay_limit_is_sent_without_a_recording() {
    let data = Bytes::from(vec![3; 8]);
    let frames = [data.clone(), Bytes::from_static(b"0123456789")].map(|d| Ok::<_, Failure>(Frame::data(d)));
    let source = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    let (first, replay) = ReplayBody::record(source, 10, None, false, &call());
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
        let (first, replay) = ReplayBody::record(source, limit, None, false, &call());
        let mut first = Box::pin(first);
        drop(read(first.as_mut(), 1));
        assert!(!replay.has_failed(), "{limit} {known}");
        assert!(read(first.as_mut(), 1).failed);
        assert!(replay.has_failed(), "{limit} {known}");
        drop(first);
        assert!(replay.has_failed(), "{limit} {known}");
        assert!(replay.body().is_none());
    }
    let (first, replay) = ReplayBody::record(Script::new([Step::data(3)]), 1, None, false, &call());
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
    let (first, replay) = ReplayBody::record(body, 1, None, false, &call());
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
    let body = AnyBody::from_fn(|| AnyBody::new(ReplayBody::new(Script::new([Step::data(3), Step::Fail]))));
    let (first, replay) = ReplayBody::record(body, 10, None, false, &call());
    assert!(read_all(first).failed);
    assert!(replay.has_failed() && replay.body().is_none());
}

#[test]
fn unread_body_of_an_earlier_attempt_does_not_undo_the_failure_of_a_later_one() {
    let body = AnyBody::from_fn(|| AnyBody::new(ReplayBody::new(Script::new([Step::data(3), Step::Fail]))));
    let (first, replay) = ReplayBody::record(body, 10, None, false, &call());
    assert!(read_all(replay.body().unwrap()).failed);
    drop(first);
    assert!(replay.has_failed() && !replay.is_replayable() && replay.body().is_none());
}

/// After an early response, a connection may still send the body of an earlier attempt.
#[tokio::test(start_paused = true)]
async fn body_of_an_earlier_attempt_is_no_progress_and_its_error_does_not_prevent_a_retry() {
    let (call, cx) = (call(), &mut Context::from_waker(Waker::noop()));
    let steps = [Step::data(3), Step::data(3), Step::Fail];
    let body = AnyBody::from_fn(move || AnyBody::new(ReplayBody::new(Script::new(steps.clone()))));
    let (mut first, replay) = ReplayBody::record(body, 10, None, false, &call);
    assert!(matches!(Pin::new(&mut first).poll_frame(cx), Poll::Ready(Some(Ok(_)))));
    let second = replay.body().unwrap();
    let progress = call.body_progress();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(read_all(first).failed);
    assert_eq!(call.body_progress(), progress);
    assert!(!replay.has_failed() && replay.is_replayable());
    assert!(read_all(second).failed);
    assert_eq!(call.body_progress(), Instant::now());
    assert!(replay.has_failed());
}
