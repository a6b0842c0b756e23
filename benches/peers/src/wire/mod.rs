//! Clients against a server on loopback: the server, and clients that take turns at it.

mod race;
mod server;

pub use self::race::{Caller, Race};
pub use self::server::{BODY, OwnServer, serve};
