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
//! | | quota | margin | burst | environment variable of the key | timeouts: call, attempt |
//! |---|---|---|---|---|---|
//! | [`currency_rates`] | 100 a minute, varies by plan | 1 s | 10 | `CURRENCY_RATES_API_KEY` | 60 s, 10 s |
//! | [`email_delivery`] | 1000 a minute, varies by plan | 1 s | 100 | `EMAIL_DELIVERY_API_KEY` | 60 s, 10 s |
//! | [`realtime_messaging`] | not published, so it is learned | | | `REALTIME_MESSAGING_API_KEY` | 60 s, 10 s |
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
mod currency_rates;
mod email_delivery;
mod realtime_messaging;

#[cfg(feature = "serde")]
pub use self::config::StackConfig;
pub use self::currency_rates::currency_rates;
pub use self::email_delivery::email_delivery;
pub use self::realtime_messaging::realtime_messaging;
