use std::{fmt, mem};

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::{Body, FRAMES_PER_POLL};
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
        Ok(self.read_up_to(limit).await?.0)
    }

    /// Like [`bytes_up_to`](Self::bytes_up_to). Also returns whether the body had trailers.
    pub(crate) async fn read_up_to(&mut self, limit: usize) -> Result<(Bytes, bool), BoxError> {
        let announced = usize::try_from(self.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > limit {
            return Err(BodyTooLarge { limit }.into());
        }
        let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
        let (mut frames, mut had_trailers) = (0, false);
        while let Some(frame) = self.frame().await {
            let frame = frame?;
            had_trailers |= frame.is_trailers();
            if let Ok(data) = frame.into_data() {
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
        Ok((if whole.is_empty() { first } else { whole.freeze() }, had_trailers))
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
    pub(super) limit: usize,
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
