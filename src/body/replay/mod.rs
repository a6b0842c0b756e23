//! Records a request's body while it is sent, so that a retry can resend it.

mod body;
mod handle;
mod recording;
mod shared;

pub use self::body::ReplayBody;
pub(crate) use self::handle::Replay;
