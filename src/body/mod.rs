//! The bodies of requests and responses.
//!
//! - [`Body`] is the body of the client. It can hold a body of any type.
//! - [`ReplayBody`] is the request body below a [`retry`](crate::retry) layer, which can resend it.
//! - [`IdleBody`] is the response body above a [`BodyIdleTimeoutLayer`](crate::timeout::BodyIdleTimeoutLayer).
//!
//! ```
//! use tower_outbound::Body;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_outbound::BoxError> {
//! let body = Body::from("to=ann");
//! assert_eq!(body.bytes_up_to(64).await?, "to=ann");
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! | what | limit |
//! |---|---|
//! | bytes of data and trailers that are recorded for retries | [`RetryLayer::with_replay_limit`](crate::retry::RetryLayer::with_replay_limit), 1 MiB by default |
//! | bytes that [`Body::bytes_up_to`] reads | its argument `limit` |
//! | bytes of a failed response that are read before a retry, so that its HTTP/1 connection can be reused | 64 KiB |
//!
//! # Notes
//!
//! The length of a request's body is its `content-length`, otherwise its exact size hint. A body that is shorter, or
//! has a chunk that exceeds the length, fails.
//!
//! Over HTTP/1, hyper stops reading a body at its length, before the body reports its end. A recording of that length
//! is treated as complete and can be replayed, unless the request has a `trailer` header. Further chunks are not read,
//! and are no error.

#[expect(clippy::module_inception, reason = "the module is named after its type")]
pub(crate) mod body;
mod bytes_up_to;
mod recording;
mod replay;
mod response;
#[cfg(test)]
mod test_body;

pub(crate) use self::body::Body;
pub(crate) use self::body::{BrokenBody, BrokenResponse};
pub use self::bytes_up_to::BodyTooLarge;
pub(crate) use self::replay::Replay;
pub use self::replay::ReplayBody;
pub(crate) use self::response::Drain;
pub use self::response::IdleBody;
#[cfg(feature = "client")]
pub(crate) use self::response::{ConnectionBody, Lease};

/// The default limit of a recording, 1 MiB. Recording a body that is in memory needs no additional memory. With this
/// limit, 100 concurrent calls with streamed bodies record at most 100 MiB.
pub(crate) const DEFAULT_REPLAY_LIMIT: usize = 1024 * 1024;

/// The number of frames that are read in one poll before the task yields. This prevents an endless stream from starving
/// other tasks or the caller's timer. If each frame fills hyper's first read buffer of 8 KiB, 32 frames are 256 KiB.
const FRAMES_PER_POLL: usize = 32;
