//! Whole stacks: the guarantees, the contract of tower, leaks of keys, hostile servers and long load.
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
