//! Measures HTTP clients against a server on loopback.

mod clients;
mod server;

pub use self::clients::{BenchClient, ClientComparison};
pub use self::server::{BODY, ServerProcess, serve};
