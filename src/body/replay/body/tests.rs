use std::{task::Waker, time::Duration};

use http_body_util::Full;
use proptest::prelude::*;
use tokio::time::Instant;

use super::super::super::test_body::{Read, Script, Step, call, read, read_all};
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
        let (first, replay) = ReplayBody::record(source, limit, None, &call());
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
    let (first, replay) = ReplayBody::record(Full::new(data.clone()), usize::MAX, None, &call());
    let mut first = Box::pin(first);
    assert_eq!(read(first.as_mut(), 1).data.len(), PART);
    assert_eq!(read_all(replay.body().unwrap()).data, data);
    drop(first);
    assert_eq!(read_all(replay.body().unwrap()).data, data);
}

#[test]
fn large_chunk_is_sent_and_replayed_in_parts() {
    let data = Bytes::from((0..2 * PART as u32 + 3).map(|at| (at >> 3) as u8).collect::<Vec<_>>());
    let (first, replay) = ReplayBody::record(Full::new(data.clone()), usize::MAX, None, &call());
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
    let (first, replay) = ReplayBody::record(Script::new(steps), 1_000, None, &call);
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
