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
//! [`ALL`] lists the presets with their quotas and the environment variables of their keys. A quota varies by the plan of
//! the application. Its burst is a tenth of it, and its margin 1 s. A call takes at most 60 s, and an attempt 10 s.
//!
//! The quotas, the bearer header and the `content-type` come from the services' documentation or sample calls. All
//! other values are choices of this crate, and the documentation of each setter states the reason.
//!
//! A [paced window](crate::limit::LocalLimiter::paced_window) enforces the quotas. Without a quota, an
//! [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate that the server accepts. To use another limiter, see
//! [`StackBuilder::with_limiter`](crate::stack::StackBuilder::with_limiter).
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
