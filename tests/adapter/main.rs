//! Tests the optional adapters of other crates and protocols. `tests/redis` has the tests of the Redis adapter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[cfg(feature = "backoff")]
mod backoff;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "oauth2")]
mod oauth2;
#[cfg(feature = "otel")]
mod otel;
#[path = "../support/mod.rs"]
mod support;
#[cfg(all(feature = "client", feature = "oauth2"))]
mod tenants;
