use tokio_test::{assert_pending, assert_ready, task::spawn};

use super::*;
use crate::body::test_body::{Script, Step};

/// Returns the number of polls, and the number of frames that were read.
fn drain(script: Script, limit: u64) -> (usize, usize) {
    let given = script.given();
    let mut task = spawn(Drain::with_limit(script, limit));
    for polls in 1.. {
        if task.poll().is_ready() {
            assert_ready!(task.poll());
            return (polls, given.get());
        }
        assert!(task.is_woken());
    }
    unreachable!()
}

#[test]
fn drain_reads_a_body_within_the_limit_to_its_end() {
    assert_eq!(drain(Script::new([Step::data(4), Step::Wait, Step::data(6)]), 10), (2, 2));
    assert_eq!(drain(Script::new([Step::data(10), Step::trailers(100)]), 10), (1, 2));
    assert_eq!(drain(Script::new([Step::data(4)]).knowing_its_end(), 4), (1, 1));
}

#[test]
fn drain_stops_after_the_frame_that_exceeds_the_limit() {
    assert_eq!(drain(Script::new([Step::data(4), Step::data(7), Step::data(1)]), 10), (1, 2));
}

#[test]
fn drain_stops_if_the_body_fails() {
    assert_eq!(drain(Script::new([Step::data(4), Step::Fail, Step::data(1)]), 10), (1, 1));
}

#[test]
fn drain_does_not_read_a_body_whose_length_exceeds_the_limit() {
    assert_eq!(drain(Script::new([Step::data(11)]).knowing_its_size(), 10), (1, 0));
    assert_eq!(drain(Script::new([Step::data(1)]), 0), (1, 0));
    assert_eq!(drain(Script::new([]).knowing_its_end(), 0), (1, 0));
}

#[test]
fn drain_yields_and_stops_at_the_limit_during_endless_empty_frames() {
    let endless = || Script::new((0..10_000).map(|_| Step::data(0)));
    let script = endless();
    let given = script.given();
    let mut task = spawn(Drain::with_limit(script, u64::MAX));
    assert_pending!(task.poll());
    assert!(task.is_woken());
    assert_eq!(given.get(), FRAMES_PER_POLL);
    assert_eq!(drain(endless(), 100), (4, 101));
}
