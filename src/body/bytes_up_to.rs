use std::{fmt, mem};

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::{FRAMES_PER_POLL, body::Body};
use crate::error::BoxError;

/// The maximum memory that is reserved for the announced length of a body: 64 KiB. A server may announce more bytes
/// than it sends.
const RESERVE_AT_MOST: usize = 64 * 1024;

impl Body {
    /// Reads the whole body into memory, up to `limit` bytes. Discards trailers.
    ///
    /// A longer body is an error, and is not truncated. `collect` of `http_body_util::BodyExt` has no limit.
    ///
    /// A body of one chunk is not copied.
    ///
    /// ```
    /// use tower_outbound::{Body, body::BodyTooLarge};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let error = Body::from("hello").bytes_up_to(4).await.unwrap_err();
    /// assert_eq!(error.downcast_ref::<BodyTooLarge>().unwrap().limit(), 4);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`BodyTooLarge`] if the body exceeds the limit. If the body reports a length above the limit, nothing is
    /// read. Returns the body's own error if the body fails.
    pub async fn bytes_up_to(mut self, limit: usize) -> Result<Bytes, BoxError> {
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
                tokio::task::yield_now().await;
            }
        }
        Ok(if whole.is_empty() { first } else { whole.freeze() })
    }
}

/// The error of [`Body::bytes_up_to`] for a body that exceeds the limit.
///
/// ```
/// # fn show(error: tower_outbound::body::BodyTooLarge) {
/// println!("response body is larger than {} bytes", error.limit());
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyTooLarge {
    limit: usize,
}

impl BodyTooLarge {
    /// Returns the limit, in bytes.
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
        test_body::{Failure, Script, Step},
    };
    use super::*;

    fn boxed(script: Script) -> Body {
        Body::new(ReplayBody::new(script))
    }

    #[tokio::test]
    async fn bytes_up_to_returns_data_and_drops_trailers() {
        let steps =
            [Step::data(0), Step::data(3), Step::Wait, Step::data(0), Step::data(2), Step::trailers(9)];
        assert_eq!(boxed(Script::new(steps)).bytes_up_to(5).await.unwrap(), [0_u8, 1, 2, 0, 1].as_slice());
    }

    #[tokio::test]
    async fn bytes_up_to_accepts_a_body_of_exactly_the_limit() {
        for (limit, fits) in [(7, true), (6, false), (3, false), (0, false), (usize::MAX, true)] {
            let whole = boxed(Script::new([Step::data(4), Step::data(3)])).bytes_up_to(limit).await;
            assert_eq!(whole.is_ok(), fits, "{limit}");
            if let Err(error) = whole {
                assert_eq!(error.downcast_ref(), Some(&BodyTooLarge { limit }));
                assert_eq!(error.to_string(), format!("body is larger than the limit of {limit} bytes"));
            }
        }
        assert!(Body::empty().bytes_up_to(0).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn bytes_up_to_does_not_read_a_body_whose_length_exceeds_the_limit() {
        let script = Script::new([Step::data(9)]).knowing_its_size();
        let given = script.given();
        assert!(boxed(script).bytes_up_to(8).await.is_err());
        assert_eq!(given.get(), 0);
    }

    #[tokio::test]
    async fn bytes_up_to_returns_the_error_of_the_body() {
        assert!(
            boxed(Script::new([Step::data(1), Step::Fail])).bytes_up_to(9).await.unwrap_err().is::<Failure>()
        );
    }

    #[tokio::test]
    async fn bytes_up_to_does_not_copy_a_body_of_one_chunk() {
        let bytes = Bytes::from(vec![7; 9]);
        let whole = Body::new(Full::new(bytes.clone())).bytes_up_to(9).await.unwrap();
        assert_eq!(whole.as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn bytes_up_to_yields_during_endless_empty_frames() {
        let frames = std::iter::repeat_with(|| Ok::<_, Failure>(http_body::Frame::data(Bytes::new())));
        let mut task = spawn(Body::new(StreamBody::new(futures_util::stream::iter(frames))).bytes_up_to(9));
        for _ in 0..3 {
            assert_pending!(task.poll());
            assert!(task.is_woken());
        }
    }
}
