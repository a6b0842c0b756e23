//! The whole stack for one service. A [`StackBuilder`] holds the configuration of each layer, and makes a
//! [`Layer`](tower_layer::Layer) for a custom service or a ready [`Client`](crate::Client).
//!
//! ```
//! use tower_outbound::{ApiKey, Client, InvalidConfig, Quota, stack::StackBuilder};
//!
//! fn orders(key: ApiKey) -> Result<Client, InvalidConfig> {
//!     StackBuilder::new("https://orders.example.com/v2")?
//!         .with_name("orders") // `service` in the log
//!         .with_api_key(key)
//!         .with_quota(Quota::per_minute(300)?)
//!         .client()
//! }
//! # orders(ApiKey::new("s3cret").unwrap()).unwrap();
//! ```
//!
//! A [preset](crate::preset) is a `StackBuilder` with the published facts of one service. A
#![cfg_attr(
    feature = "serde",
    doc = "[`StackConfig`](crate::preset::StackConfig) is its form in a file or the environment."
)]
#![cfg_attr(not(feature = "serde"), doc = "`StackConfig` is its form in a file, with the feature `serde`.")]
//!
//! # Order
//!
//! Request id and log, default headers, total timeout, retry, rate limit, attempt span, credential, attempt timeout,
//! then the client. [`StackLayer`] defines this order. The idle timeout of the response body is outside of all layers,
//! and off until [`StackBuilder::with_body_idle_timeout`] sets it. For the layers of other crates, see
//! [`guide::other_layers`](crate::guide::other_layers).
//!
//! # Headers
//!
//! | header | default | changed by |
//! |---|---|---|
//! | `x-request-id` | a UUID for each call | [`StackBuilder::with_request_id`] |
//! | `content-type` | `application/json` on a request with a body; of a preset on every request | [`StackBuilder::with_header`] |
//! | `user-agent` | [`StackBuilder::DEFAULT_USER_AGENT`] from [`StackBuilder::client`] and [`StackBuilder::client_with_transport`] | [`StackBuilder::with_header`] |
//! | `accept` | `application/json` on the JSON calls of a client | [`StackBuilder::with_header`] |
//! | `authorization` | the key, as a bearer token | [`StackBuilder::with_key_placement`] and others |
//!
//! A header that the caller has set on the request is never replaced.
//!
//! # After a 401
//!
//! A key from a file or a provider is replaced, once for all concurrent calls with a 401. Each of these calls is
//! retried once with the new key, also a POST. A second 401 is returned. See [`retry`](crate::retry#after-a-401).
//!
//! A fixed key, or one from the environment, is not replaced, and its 401 is returned.

mod base_url;
mod builder;
mod credential;
mod default_headers;
mod layer;
mod service;

pub(crate) use self::base_url::BaseUrl;
pub use self::builder::StackBuilder;
pub use self::layer::StackLayer;
pub use self::service::StackService;
