//! Optional edges: what other crates bring, put in the form that a layer here takes. A feature and a file for each,
//! all off by default; nothing else in this crate names them, but for the metrics, which are counted where the events
//! are told.
//!
//! | feature | type | what it makes |
//! |---|---|---|
//! | `backoff` | [`FromBackoff`] | a [`Schedule`](crate::retry::Schedule) of a policy of the `backoff` crate |
//! | `backon` | [`FromBackoffBuilder`] | a [`Schedule`](crate::retry::Schedule) of a builder of the `backon` crate |
//! | `otel` | [`TraceContext`] | a [`Propagate`](crate::attempt_span::Propagate) of OpenTelemetry's spans as W3C's `traceparent` |
//! | `reqwest` | [`Reqwest`] | a service of a `reqwest::Client`, for every layer and preset to go over |
//! | `redis` | [`RedisLimiter`] | a [`Limiter`](crate::limit::Limiter) whose quota all processes share |
//! | `metrics` | [`adapter::metrics`][self::metrics] | counters, gauges and histograms for the recorder of the `metrics` facade |
//!
//! ```
//! # #[cfg(feature = "backon")] {
//! use backon::ExponentialBuilder;
//! use tower_outbound::{adapter::FromBackoffBuilder, retry::RetryLayer};
//!
//! // 1 s, 2 s and 4 s, as `backon` has it by default; two of them fit into the layer's 3 attempts.
//! let layer = RetryLayer::new().with_schedule(FromBackoffBuilder::new(ExponentialBuilder::default()));
//! # }
//! ```
//!
//! What goes for each stands with its type; what goes for schedules, here.
//!
//! # Surprises
//!
//! - Both bounds hold: the attempts end with the schedule, and at the layer's
//!   [`with_max_attempts`](crate::retry::RetryLayer::with_max_attempts), 3 by default. With `u32::MAX` it is the
//!   schedule alone that ends them, the budget and the deadline aside.
//! - What the server asks for goes before: an attempt waits for the longer of the two, and where that is the ask, up to
//!   half of the schedule's own back-off is added to it, so that callers who were told the same moment don't come back
//!   together.
//! - Each call has a new schedule, which begins at the first failure that needs it. The layer uses
//!   [`with_throttled_schedule`](crate::retry::RetryLayer::with_throttled_schedule) after a 429 or 529, and
//!   [`with_schedule`](crate::retry::RetryLayer::with_schedule) after any other failure. Set both to use one kind of
//!   backoff.
//! - Their jitter is their own: [`with_seed`](crate::retry::RetryLayer::with_seed) does not reach it.
//!
// Links to what is not built: there is a page of it all the same.
#![cfg_attr(
    not(feature = "backoff"),
    doc = "[`FromBackoff`]: https://docs.rs/tower-outbound/latest/tower_outbound/adapter/struct.FromBackoff.html"
)]
#![cfg_attr(
    not(feature = "backon"),
    doc = "[`FromBackoffBuilder`]: https://docs.rs/tower-outbound/latest/tower_outbound/adapter/struct.FromBackoffBuilder.html"
)]
#![cfg_attr(
    not(feature = "otel"),
    doc = "[`TraceContext`]: https://docs.rs/tower-outbound/latest/tower_outbound/adapter/struct.TraceContext.html"
)]
#![cfg_attr(
    not(feature = "redis"),
    doc = "[`RedisLimiter`]: https://docs.rs/tower-outbound/latest/tower_outbound/adapter/struct.RedisLimiter.html"
)]
#![cfg_attr(
    not(feature = "reqwest"),
    doc = "[`Reqwest`]: https://docs.rs/tower-outbound/latest/tower_outbound/adapter/struct.Reqwest.html"
)]
#![cfg_attr(
    not(feature = "metrics"),
    doc = "[self::metrics]: https://docs.rs/tower-outbound/latest/tower_outbound/adapter/metrics/"
)]

#[cfg(feature = "backoff")]
mod backoff;
#[cfg(feature = "backon")]
mod backon;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "otel")]
mod otel;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "reqwest")]
mod reqwest;

#[cfg(feature = "backoff")]
pub use self::backoff::FromBackoff;
#[cfg(feature = "backon")]
pub use self::backon::FromBackoffBuilder;
#[cfg(feature = "otel")]
pub use self::otel::TraceContext;
#[cfg(feature = "redis")]
pub use self::redis::{Fallback, RedisAcquire, RedisLimiter, Store};
#[cfg(feature = "reqwest")]
pub use self::reqwest::{Reqwest, ReqwestBody, ReqwestFuture};
