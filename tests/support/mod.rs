//! Helpers that the test binaries share.
#![allow(dead_code, unused_imports, reason = "each test binary uses some of these items")]

pub(crate) mod capture;
pub(crate) mod cases;
#[cfg(feature = "rustls")]
pub(crate) mod certificate;
pub(crate) mod key_search;
mod scripted;
#[cfg(feature = "client")]
pub(crate) mod server;
#[cfg(all(feature = "metrics", feature = "redis"))]
pub(crate) mod store;

pub(crate) use scripted::*;

/// Returns the message of a panic. Returns `None` if the payload is not a string.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}
