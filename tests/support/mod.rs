//! Helpers that the test binaries share.
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

pub(crate) mod capture;
pub(crate) mod cases;
#[cfg(feature = "rustls")]
pub(crate) mod certificate;
mod scripted;
#[cfg(feature = "client")]
pub(crate) mod server;
#[cfg(all(feature = "metrics", feature = "redis"))]
pub(crate) mod store;

pub(crate) use scripted::*;
