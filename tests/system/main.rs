//! Tests whole stacks: the guarantees, tower's contract, hostile servers and load. Also checks the order of the crate's
//! modules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod contract;
mod guarantees;
#[cfg(feature = "client")]
mod hostile;
#[cfg(feature = "client")]
mod in_flight;
mod module_order;
#[cfg(feature = "rustls")]
mod soak;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "client")]
mod threads;
