//! Bodies: one type for the ready client, one that can be sent again, and what becomes of the rest.
//!
//! - [`Body`] is the one erased body that the ready client takes and gives. Nothing, bytes in memory and hyper's own
//!   body cost no allocation; any other body is boxed.
//! - [`ReplayBody`] hands a request's body on unchanged and records it on the way, up to a cap, so that the retry layer
//!   can send the same request again. [`Replay`] is the handle that gives the next body, or says in [`NotReplayable`]
//!   why it can't.
//! - [`FromBuffered`] is a body that a signing layer can read whole and hand on.
//! - [`IdleBody`] ends a response's body that stands still, when [`timeout`](crate::timeout) was told to.
//! - A failed response's body is read to its end, bounded in bytes, and thrown away, because an HTTP/1 connection whose
//!   last response was left unread is closed and not used again.
//!
//! ```
//! use tower_outbound::{Body, body::{DEFAULT_REPLAY_LIMIT, ReplayBody}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_outbound::error::BoxError> {
//! let (first, replay) = ReplayBody::record(Body::from("to=ann"), DEFAULT_REPLAY_LIMIT);
//! assert_eq!(Body::new(first).collect(64).await?, "to=ann");
//!
//! let second = replay.body()?;
//! assert_eq!(Body::new(second).collect(64).await?, "to=ann");
//! # Ok(())
//! # }
//! ```
//!
//! # Caps
//!
//! | what | cap |
//! |---|---|
//! | bytes recorded for a call | [`DEFAULT_REPLAY_LIMIT`], 1 MiB, or the limit given to [`ReplayBody::record`] |
//! | bytes held by [`Body::collect`] | the limit given to it |
//! | bytes of a failed response read | given by the layer that drains |
//!
//! # Surprises
//!
//! - The cap of a recording counts bytes of data and of trailers. A chunk is kept by reference count, not copied, so a
//!   chunk cut from a larger buffer keeps that buffer alive until the call ends.
//! - A body that was cut off in the middle can't be sent again: its source is part way through. One that was not begun
//!   can, whatever its size: after a connect error nothing was read from it.
//! - A stream that doesn't know its end, sent over HTTP/1 under a `content-length` that the caller wrote, counts as cut
//!   off: hyper stops reading at that length, before the stream says that there is no more.

mod any;
mod buffered;
mod collect;
mod drain;
mod handle;
mod idle;
mod replay;
#[cfg(test)]
mod script;
mod tape;

pub use self::any::Body;
pub use self::buffered::FromBuffered;
pub use self::collect::BodyTooLarge;
pub(crate) use self::drain::Drain;
pub use self::handle::Replay;
pub use self::idle::IdleBody;
pub use self::replay::{DEFAULT_REPLAY_LIMIT, ReplayBody};
pub use self::tape::NotReplayable;

/// Frames read in one poll before the task yields: a stream that is always ready must not starve its neighbours nor the
/// caller's timer. 32 frames as large as hyper's first read buffer, 8 KiB, are 256 KiB.
const FRAMES_PER_POLL: usize = 32;
