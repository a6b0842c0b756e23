//! Optional integrations with other crates and protocols, each behind a feature.
//!
//! | feature | type | purpose |
//! |---|---|---|
//! | `backoff` | [`from_backoff`] | retry delays from a policy of the `backoff` crate |
//! | `otel` | [`trace_context`] | sends OpenTelemetry's span context as W3C `traceparent` |
//! | `reqwest` | [`Reqwest`], [`SendWith`] | the layers over a `reqwest::Client` |
//! | `redis` | [`RedisLimiter`] | a [`Limiter`](crate::limit::Limiter) whose quota several processes share |
//! | `oauth2` | [`ClientCredentials`] | a [`KeySource`](crate::auth::KeySource) that fetches OAuth 2 access tokens |
//! | `metrics` | [`adapter::metrics`] | counters, gauges and histograms of the `metrics` facade |
//!
//! [`from_backoff`]: fn.from_backoff.html
//! [`trace_context`]: fn.trace_context.html
//! [`Reqwest`]: struct.Reqwest.html
//! [`SendWith`]: trait.SendWith.html
//! [`RedisLimiter`]: struct.RedisLimiter.html
//! [`ClientCredentials`]: struct.ClientCredentials.html
//! [`adapter::metrics`]: metrics/index.html
//!
//! Builders of the `backon` crate need no adapter, because a closure implements [`Backoff`](crate::retry::Backoff):
//!
//! ```
//! use backon::{BackoffBuilder, ExponentialBuilder};
//! use tower_outbound::retry::RetryLayer;
//!
//! // By default, `backon` returns 1 s, 2 s and 4 s. The layer's 3 attempts use the first two delays.
//! let builder = ExponentialBuilder::new().with_jitter();
//! let layer = RetryLayer::new().with_custom_backoff(move || builder.build());
//! ```
//!
//! # Notes
//!
//! These notes apply to policies of `backoff` and builders of `backon`:
//!
//! - Retries end when the policy returns no further delay, or when the layer's [maximum number of
//!   attempts](crate::retry::RetryLayer::with_max_attempts) is reached, 3 by default. If this maximum is `u32::MAX`,
//!   only the policy, the budget and the deadline end the retries.
//! - A longer delay that the server requests replaces the policy's delay. Jitter of up to half of the policy's delay is
//!   then added.
//! - Each call starts a new sequence of delays at its first failure. The retry layer uses
//!   [`with_custom_throttled_backoff`](crate::retry::RetryLayer::with_custom_throttled_backoff) after a 429 or 529, and
//!   [`with_custom_backoff`](crate::retry::RetryLayer::with_custom_backoff) after any other failure. To use one policy
//!   in both cases, set it with both methods.
//! - [`with_seed`](crate::retry::RetryLayer::with_seed) does not affect the jitter of these crates.

#[cfg(feature = "backoff")]
mod backoff;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "oauth2")]
mod oauth2;
#[cfg(feature = "otel")]
mod otel;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "reqwest")]
mod reqwest;

#[cfg(feature = "backoff")]
pub use self::backoff::from_backoff;
#[cfg(feature = "oauth2")]
pub use self::oauth2::ClientCredentials;
#[cfg(feature = "otel")]
pub use self::otel::trace_context;
#[cfg(feature = "redis")]
pub use self::redis::{RedisLimiter, Store};
#[cfg(feature = "reqwest")]
pub use self::reqwest::{Reqwest, ReqwestBody, SendWith};
