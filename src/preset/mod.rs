//! Presets: functions that return a [`StackBuilder`](crate::stack::StackBuilder) with the published values of one
//! service.
//!
//! ```no_run
//! use tower_outbound::{ApiKey, Quota, preset};
//!
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let rates = preset::currency_rates("https://rates.example.com")?
//!     .with_api_key(ApiKey::from_file("/run/secrets/rates")?)
//!     .with_quota(Quota::per_minute(600)?) // a larger plan
//!     .client()?;
//!
//! let response = rates.get("/v1/resources").await?;
//! println!("{} {:?}", response.status(), response.into_body().bytes_up_to(64 * 1024).await?);
//! # Ok(())
//! # }
//! ```
//!
//! [`ALL`] lists the presets with these values:
//!
//! | setting | value | setter |
//! |---|---|---|
//! | quota | the published one. It varies by the application's plan | [`with_quota`](crate::stack::StackBuilder::with_quota) |
//! | burst | a tenth of the quota | [`Quota::with_burst`](crate::Quota::with_burst) |
//! | margin | 1 s | [`Quota::with_margin`](crate::Quota::with_margin) |
//! | key | a bearer token from an environment variable, such as `CURRENCY_RATES_API_KEY` | [`with_api_key`](crate::stack::StackBuilder::with_api_key) and others |
//! | total timeout | 60 s | [`with_total_timeout`](crate::stack::StackBuilder::with_total_timeout) |
//! | attempt timeout | 10 s | [`with_attempt_timeout`](crate::stack::StackBuilder::with_attempt_timeout) |
//! | `content-type` | `application/json` on every request | [`with_header`](crate::stack::StackBuilder::with_header) |
//!
//! The quotas, the bearer header and the `content-type` come from the services' documentation or sample calls. All
//! other values are choices of this crate, and the documentation of each setter states the reason.
//!
//! A [paced window](crate::limit::LocalLimiter::paced_window) enforces the quotas. If the service publishes no quota,
//! an [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate that the server accepts. To use another
//! limiter, see [`StackBuilder::with_limiter`](crate::stack::StackBuilder::with_limiter).
//!
//! To call any other service, start from [`Client::builder`](crate::Client::builder). For a service without a key, add
//! [`without_credential`](crate::stack::StackBuilder::without_credential).
#![cfg_attr(feature = "serde", doc = "")]
#![cfg_attr(feature = "serde", doc = include_str!("config.md"))]
#![cfg_attr(feature = "serde", doc = include_str!("sample.toml"))]
#![cfg_attr(feature = "serde", doc = "```")]

#[cfg(feature = "serde")]
mod config;
mod services;

#[cfg(feature = "serde")]
pub use self::config::StackConfig;
pub use self::services::*;
