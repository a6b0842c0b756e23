//! Tests of whole stacks: the guarantees, tower's contract, leaked keys, hostile servers and load tests. The module
//! `module_order` checks the dependencies between the crate's modules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod contract;
mod guarantees;
#[cfg(feature = "client")]
mod hostile;
#[cfg(feature = "client")]
mod leaks;
mod module_order;
#[cfg(feature = "client")]
mod soak;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "client")]
mod threads;

/// Returns the message of a panic. Returns `None` if the payload is not a string.
fn panic_text(payload: &(dyn std::any::Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}
