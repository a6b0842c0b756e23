//! The number of allocations of each layer. No subscriber is installed in this process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod immediate;
mod unobserved;
