//! The four layers, set up for one service: a value with setters, which gives a [`Layer`](tower_layer::Layer)
//! for a service of your own, or a ready [`Client`](crate::Client).
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
//! println!("{} {:?}", response.status(), response.into_body().collect(64 * 1024).await?);
//! # Ok(())
//! # }
//! ```
//!
//! | | quota | guard | burst | key, when none is given | timeouts: call, attempt |
//! |---|---|---|---|---|---|
//! | [`currency_rates`] | 100 a minute, varies by plan | 1 s | 10 | `CURRENCY_RATES_API_KEY` | 60 s, 10 s |
//! | [`email_delivery`] | 1000 a minute, varies by plan | 1 s | 100 | `EMAIL_DELIVERY_API_KEY` | 60 s, 10 s |
//! | [`realtime_messaging`] | not published: none, until it is given | | | `REALTIME_MESSAGING_API_KEY` | 60 s, 10 s |
//!
//! The quotas and the bearer header are the services' own figures and samples; all else is ours, for the reasons
//! given at the setter.
//!
//! The quotas are kept by a [`TokenBucket`](crate::limit::TokenBucket); [`Preset::with_limiter`] takes any other limiter.
//!
//! A preset for a fourth service is a function of its own that starts from [`Preset::new`].
//!
//! # A key that the server refuses
//!
//! After a 401 a key from a file or a provider is replaced, once for all calls that were refused together, and each of
//! their requests is sent once more with the new one, a POST as well; the second 401 is the answer. See
//! [`retry`](crate::retry#after-a-401). A key that was given, or read from the environment, stays, and so does its 401.
//!
//! # Order
//!
//! Request id and log, total deadline, retry, rate limit, the attempt's span, auth, per-attempt timeout, then the client:
//! written in [`PresetLayer`] and nowhere else. Outside them all stands what bounds the body of the answer, which is off until
//! [`Preset::with_body_idle_timeout`] is said. Other people's layers around them: see
//! [`interplay`](crate::interplay).

mod base_url;
mod credential;
mod currency_rates;
mod email_delivery;
mod headers;
mod realtime_messaging;
mod settings;
mod stack;

pub(crate) use self::base_url::BaseUrl;
pub use self::currency_rates::currency_rates;
pub use self::email_delivery::email_delivery;
pub use self::realtime_messaging::realtime_messaging;
pub use self::settings::Preset;
pub use self::stack::{Credentialed, PresetLayer, PresetService};
