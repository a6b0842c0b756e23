use std::{fmt, future::poll_fn, mem, task::Poll};

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::{FRAMES_PER_POLL, any::Body};
use crate::error::BoxError;

/// Most that is set aside before the bytes came, 64 KiB: a length that a server announced is not yet memory spent.
const RESERVE_AT_MOST: usize = 64 * 1024;

impl Body {
    /// Reads the whole body into memory, at most `limit` bytes; trailers are dropped.
    ///
    /// One chunk is given without a copy.
    ///
    /// ```
    /// use tower_outbound::{Body, body::BodyTooLarge};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let error = Body::from("hello").collect(4).await.unwrap_err();
    /// assert_eq!(error.downcast_ref::<BodyTooLarge>().unwrap().limit(), 4);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BodyTooLarge`] over `limit`, before anything is read when the length is announced; else the body's own error.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, BoxError> {
        let announced = usize::try_from(self.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > limit {
            return Err(BodyTooLarge { limit }.into());
        }
        let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
        let mut frames = 0;
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame?.into_data() {
                let held = first.len().max(whole.len());
                if data.len() > limit.saturating_sub(held) {
                    return Err(BodyTooLarge { limit }.into());
                }
                if held == 0 {
                    first = data;
                } else {
                    if whole.is_empty() {
                        whole.reserve(announced.min(RESERVE_AT_MOST));
                        whole.extend_from_slice(&mem::take(&mut first));
                    }
                    whole.extend_from_slice(&data);
                }
            }
            frames += 1;
            if frames % FRAMES_PER_POLL == 0 {
                yield_once().await;
            }
        }
        Ok(if whole.is_empty() { first } else { whole.freeze() })
    }
}

/// tokio's own `yield_now` needs its runtime feature.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Why [`Body::collect`] gave up: the body is larger than the limit.
///
/// ```
/// # fn show(error: tower_outbound::body::BodyTooLarge) {
/// println!("answer is over {} bytes", error.limit());
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyTooLarge {
    limit: usize,
}

impl BodyTooLarge {
    /// The limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl fmt::Display for BodyTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "body is larger than the limit of {} bytes", self.limit)
    }
}

impl std::error::Error for BodyTooLarge {}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};
    use tokio_test::{assert_pending, task::spawn};

    use super::super::{
        replay::ReplayBody,
        script::{Failure, Script, Step},
    };
    use super::*;

    fn boxed(script: Script) -> Body {
        Body::new(ReplayBody::from(script))
    }

    #[tokio::test]
    async fn gathers_data_and_drops_trailers() {
        let steps =
            [Step::data(0), Step::data(3), Step::Wait, Step::data(0), Step::data(2), Step::trailers(9)];
        assert_eq!(boxed(Script::new(steps)).collect(5).await.unwrap(), [0_u8, 1, 2, 0, 1].as_slice());
    }

    #[tokio::test]
    async fn the_limit_is_exact() {
        for (limit, fits) in [(7, true), (6, false), (3, false), (0, false), (usize::MAX, true)] {
            let whole = boxed(Script::new([Step::data(4), Step::data(3)])).collect(limit).await;
            assert_eq!(whole.is_ok(), fits, "{limit}");
            if let Err(error) = whole {
                assert_eq!(error.downcast_ref(), Some(&BodyTooLarge { limit }));
                assert_eq!(error.to_string(), format!("body is larger than the limit of {limit} bytes"));
            }
        }
        assert!(Body::empty().collect(0).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn an_announced_length_over_the_limit_is_not_read() {
        let script = Script::new([Step::data(9)]).knowing_its_size();
        let given = script.given();
        assert!(boxed(script).collect(8).await.is_err());
        assert_eq!(given.get(), 0);
    }

    #[tokio::test]
    async fn an_error_of_the_body_is_passed_on() {
        assert!(
            boxed(Script::new([Step::data(1), Step::Fail])).collect(9).await.unwrap_err().is::<Failure>()
        );
    }

    #[tokio::test]
    async fn one_chunk_is_not_copied() {
        let bytes = Bytes::from(vec![7; 9]);
        let whole = Body::new(Full::new(bytes.clone())).collect(9).await.unwrap();
        assert_eq!(whole.as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn an_endless_stream_of_nothing_yields() {
        let frames = std::iter::repeat_with(|| Ok::<_, Failure>(http_body::Frame::data(Bytes::new())));
        let mut task = spawn(Body::new(StreamBody::new(futures_util::stream::iter(frames))).collect(9));
        for _ in 0..3 {
            assert_pending!(task.poll());
            assert!(task.is_woken());
        }
    }
}
