//! The whole stack for one service: setters configure a value, which makes a [`Layer`](tower_layer::Layer) for a custom
//! service or a ready [`Client`](crate::Client).
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
//! | | quota | margin | burst | key, when none is given | timeouts: call, attempt |
//! |---|---|---|---|---|---|
//! | [`currency_rates`] | 100 a minute, varies by plan | 1 s | 10 | `CURRENCY_RATES_API_KEY` | 60 s, 10 s |
//! | [`email_delivery`] | 1000 a minute, varies by plan | 1 s | 100 | `EMAIL_DELIVERY_API_KEY` | 60 s, 10 s |
//! | [`realtime_messaging`] | not published: none, until it is given | | | `REALTIME_MESSAGING_API_KEY` | 60 s, 10 s |
//!
//! The services publish the quotas, the bearer header and the `content-type`, as figures or in sample calls. All other
//! values are this crate's. Each setter gives the reason.
//!
//! A [`TokenBucket`](crate::limit::TokenBucket) enforces the quotas. [`StackBuilder::with_limiter`] takes any other limiter.
//!
//! To call another service, start from [`StackBuilder::new`]. For a service that needs no key, add
//! [`StackBuilder::without_credential`].
//!
//! # Headers
//!
//! | header | default | changed by |
//! |---|---|---|
//! | `x-request-id` | a UUID for each call | [`StackBuilder::with_request_id`] |
//! | `content-type` | `application/json`; with [`StackBuilder::new`] only on a request with a body | [`StackBuilder::with_header`] |
//! | `user-agent` | [`StackBuilder::DEFAULT_USER_AGENT`] from [`StackBuilder::client`] and [`StackBuilder::client_over`] | [`StackBuilder::with_user_agent`] |
//! | `accept` | `application/json` on the JSON calls of a client | [`StackBuilder::with_header`] |
//! | `authorization` | the key, as a bearer token | [`StackBuilder::with_key_placement`] |
//!
//! A header that the caller has set on the request is never replaced.
//!
//! # After a 401
//!
//! A key from a file or a provider is replaced, once for all concurrent calls with a 401. Each of these calls is
//! retried once with the new key, also a POST. A second 401 is returned. See [`retry`](crate::retry#after-a-401).
//!
//! A fixed key, or one from the environment, is not replaced, and its 401 is returned.
//!
//! # Order
//!
//! Request id and log, default headers, total timeout, retry, rate limit, attempt span, credential, attempt timeout,
//! then the client. [`StackLayer`] defines this order. The idle timeout of the response body is outside of all layers,
//! and off until [`StackBuilder::with_body_idle_timeout`] sets it. [`interplay`](crate::interplay) places the layers of other
//! crates.

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
pub use self::settings::StackBuilder;
pub use self::stack::{Credentialed, StackLayer, StackService};
