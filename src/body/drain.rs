use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::Body;
use pin_project_lite::pin_project;

use super::FRAMES_PER_POLL;

/// The maximum number of bytes to read. Reading more bytes would cost more than a new connection.
const LIMIT: u64 = 64 * 1024;

pin_project! {
    /// Reads and discards the body of a failed response, so that its connection can be reused.
    ///
    /// Completes at the end of the body. Also completes if the body fails or exceeds the limit, in which case the
    /// connection is closed. Reads nothing if the body reports a length above the limit. Each frame counts as at least
    /// one byte, so that endless empty frames also exceed the limit. The caller must limit the time of the read.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Drain<B> {
        #[pin]
        body: B,
        // The number of bytes that may still be read. `None` at the end.
        left: Option<u64>,
    }
}

impl<B: Body> Drain<B> {
    /// Reads at most 64 KiB of `body`, plus the rest of the frame that exceeds this limit.
    pub(crate) fn new(body: B) -> Self {
        Self::with_limit(body, LIMIT)
    }

    fn with_limit(body: B, limit: u64) -> Self {
        // A body that has ended is polled once, so that the layers around it see its end.
        let is_over = limit == 0 || body.size_hint().lower() > limit;
        Self { body, left: (!is_over).then_some(limit) }
    }
}

impl<B: Body> Future for Drain<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        for _ in 0..FRAMES_PER_POLL {
            let Some(left) = *this.left else { return Poll::Ready(()) };
            *this.left = match ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_data() && !this.body.is_end_stream() => {
                    left.checked_sub(frame.data_ref().map_or(0, Buf::remaining).max(1) as u64)
                }
                // Trailers are always the last frame of a body.
                _ => None,
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task::spawn};

    use super::super::test_body::{Script, Step};
    use super::*;

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
}
