//! The whole stack for one service. A [`StackBuilder`] contains the configuration of each layer. It creates a
//! [`Layer`](tower_layer::Layer) for a custom service, or a [`Client`](crate::Client).
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
//! A [preset](crate::preset) is a `StackBuilder` with the published values of one service. A
#![cfg_attr(
    feature = "serde",
    doc = "[`StackConfig`](crate::preset::StackConfig) creates a builder from a file or the environment."
)]
#![cfg_attr(
    not(feature = "serde"),
    doc = "`StackConfig` creates a builder from a file, with the feature `serde`."
)]
//!
//! # Order
//!
#![doc = include_str!("../guide/order.md")]
//!
//! [`StackLayer`] defines this order. The body idle timeout has no effect until
//! [`StackBuilder::with_body_idle_timeout`] sets a limit. The route has no effect without a [`Pool`].
//! [`guide::other_layers`](crate::guide::other_layers) shows where the layers of other crates belong, and how to insert
//! a layer into a stack.
//!
//! # Headers
//!
//! | header | default | setter |
//! |---|---|---|
//! | `x-request-id` | a UUID for each call | [`StackBuilder::with_request_id`] |
//! | `content-type` | `application/json` on a request with a body, and in a preset on every request | [`StackBuilder::with_header`] |
//! | `user-agent` | [`StackBuilder::DEFAULT_USER_AGENT`] from [`StackBuilder::client`] and [`StackBuilder::client_with_transport`] | [`StackBuilder::with_header`] |
//! | `accept` | `application/json` on a request that is sent with `fetch_json` | [`StackBuilder::with_header`] |
//! | `authorization` | the key, as a bearer token | [`StackBuilder::with_key_placement`] and others |
//!
//! A header that the caller has set on the request is kept. Three headers are rejected with
//! [`is_invalid_request`](crate::Error::is_invalid_request) before anything is sent, unless they match the URL and the
//! body:
//!
//! | header | valid values |
//! |---|---|
//! | `host` | none, or the host and port of the URL. The client sends the host of the URL |
//! | `content-length` | one number: the length of the body. Any number is valid for a body of unknown length |
//! | `transfer-encoding` | `chunked`, without `content-length` |
//!
//! # After a 401
//!
//! After a 401, a key from a file or a provider is replaced. Concurrent calls share one replacement. Each call is
//! resent once with the new key, even a POST. A second 401 is returned to the caller. See
//! [`retry`](crate::retry#after-a-401).
//!
//! A key that is a fixed value or comes from the environment is not replaced, so the 401 is returned.

mod base_url;
mod builder;
#[cfg(feature = "client")]
mod client_layers;
mod default_headers;
mod pool;
mod service;

pub(crate) use self::base_url::BaseUrl;
pub use self::builder::StackBuilder;
#[cfg(feature = "client")]
pub(crate) use self::client_layers::boxed;
#[cfg(feature = "client")]
pub use self::client_layers::{OuterService, TransportService};
pub use self::default_headers::{DefaultHeaders, DefaultHeadersLayer};
pub use self::pool::{Pool, Route, RouteLayer};
pub use self::service::{StackLayer, StackService};
