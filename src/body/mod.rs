//! The bodies of requests and responses.
//!
//! - [`Body`] is the body of the ready client, of any type.
//! - [`ReplayBody`] is the request's body under a [`retry`](crate::retry) layer, which can send it again.
//! - [`IdleBody`] is the response's body above a [`BodyIdleTimeoutLayer`](crate::timeout::BodyIdleTimeoutLayer).
//!
//! ```
//! use tower_outbound::Body;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_outbound::BoxError> {
//! let body = Body::from("to=ann");
//! assert_eq!(body.collect(64).await?, "to=ann");
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! | what | limit |
//! |---|---|
//! | bytes recorded for retries, of data and trailers | [`RetryLayer::with_replay_limit`](crate::retry::RetryLayer::with_replay_limit), 1 MiB by default |
//! | bytes that [`Body::collect`] reads | its argument |
//! | bytes of a failed response read before a retry, so that its HTTP/1 connection can be used again | 64 KiB |
//!
//! # Notes
//!
//! A body of unknown length sent over HTTP/1 with a `content-length` of the caller counts as read in part. hyper stops
//! reading at that length, before the body reports its end.

#[expect(clippy::module_inception, reason = "its type is the room's own")]
pub(crate) mod body;
mod collect;
mod drain;
mod idle;
mod replay;
#[cfg(test)]
mod test_body;

pub(crate) use self::body::Body;
pub use self::collect::BodyTooLarge;
pub(crate) use self::drain::Drain;
pub use self::idle::IdleBody;
pub(crate) use self::replay::Replay;
pub use self::replay::ReplayBody;

/// The default limit of a recording, 1 MiB. A recorded body that is in memory already costs nothing more, so the limit bounds
/// streams: 100 calls at once hold at most 100 MiB.
pub(crate) const DEFAULT_REPLAY_LIMIT: usize = 1024 * 1024;

/// The number of frames read in one poll before the task yields, so that an endless stream does not starve other tasks or
/// the caller's timer. 32 frames of hyper's first read buffer, 8 KiB, are 256 KiB.
const FRAMES_PER_POLL: usize = 32;
