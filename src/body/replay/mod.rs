//! Sends a request's body and records it, so that a retry can send it again.

mod body;
mod handle;
mod recording;
mod shared;

pub use self::body::ReplayBody;
pub(crate) use self::handle::Replay;
