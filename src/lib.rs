//! Tower layers for clients of third-party HTTP APIs. The layers send a credential only to its own origin and enforce a
//! rate limit in every time window. They retry a request only if that is safe, and give each call an id and a log
//! event. Presets stack the layers over a hyper client.
//!
//! # What happens to a request
//!
#![doc = include_str!("guide/pictures/stack.svg")]
//!
#![doc = include_str!("guide/order.md")]
//!
//! # A client
//!
//! ```toml
//! [dependencies]
//! tower-outbound = { version = "0.1", features = ["json"] }
//! serde = { version = "1", features = ["derive"] }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! [`Client::builder`] takes the base URL of a service. The client sends the key, limits the requests to the quota,
//! retries failed attempts, and logs each call:
//!
#![cfg_attr(feature = "json", doc = "```no_run")]
#![cfg_attr(not(feature = "json"), doc = "```ignore")]
//! use tower_outbound::{BoxError, Client, Quota};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order {
//!     item: String,
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let client = Client::builder("https://api.example.com/v2")?
//!         .with_api_key_env("ORDERS_KEY")
//!         .with_quota(Quota::per_minute(300)?)
//!         .with_max_attempts(5)
//!         .client()?;
//!
//!     // GET https://api.example.com/v2/orders/7
//!     let order: Order = client.get("/orders/7").fetch_json().await?;
//!     let response = client.post("/orders").json(&order).await?;
//!     println!("{}: {}", response.status(), response.text().await?);
//!     Ok(())
//! }
//! ```
//!
//! `.await` on a request returns every HTTP status as `Ok`. An [`Error`] means that no response arrived. `fetch_json`
//! also returns an error for a status other than 2xx.
//!
//! | task | method |
//! |---|---|
//! | another credential, or none | [`with_key_placement`], [`with_signature`], [`without_credential`] |
//! | one limiter for several clients | [`with_limiter`], with a clone of one [paced window](crate::limit::LocalLimiter::paced_window) |
//! | several keys or regions of one service | [`with_pool`] |
//! | retries after another status or header | [`retry_on`], [`retry_if`], [`RequestBuilder::idempotent`](client::RequestBuilder::idempotent) for a POST |
//! | a longer wait than 60 s, the default | [`with_total_timeout`] |
//! | an existing `reqwest::Client` | [`client_with_service`], see [`guide::reqwest`](mod@guide::reqwest). The feature `reqwest` also sends requests of reqwest through a stack, see [`adapter`] |
//! | tests without a server and without waiting | [`test_util`], see [below](#tests) |
//!
//! [`client_with_service`]: stack::StackBuilder::client_with_service
//! [`retry_if`]: stack::StackBuilder::retry_if
//! [`retry_on`]: stack::StackBuilder::retry_on
//! [`with_key_placement`]: stack::StackBuilder::with_key_placement
//! [`with_limiter`]: stack::StackBuilder::with_limiter
//! [`with_pool`]: stack::StackBuilder::with_pool
//! [`with_signature`]: stack::StackBuilder::with_signature
//! [`with_total_timeout`]: stack::StackBuilder::with_total_timeout
//! [`without_credential`]: stack::StackBuilder::without_credential
//!
//! A [`preset`] is a builder with the values from the documentation of one kind of service, such as its quota. An
//! example is `preset::currency_rates("https://rates.example.com")?`. [`preset::ALL`] lists the presets.
//! With the feature `serde`, a `StackConfig` contains the configuration of a client or a stack, read [from a file or
//! the environment](preset#configuration-from-files).
//!
//! # A stack of layers
//!
//! ```toml
//! [dependencies]
//! tower-outbound = "0.1"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! tower = { version = "0.5", features = ["util"] }
//! http = "1"
//! hyper-util = { version = "0.1", features = ["client-legacy", "http1", "tokio"] }
//! ```
//!
//! The layers work with any client that is a tower service. The example shows their order. Each layer also works alone:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_outbound::{
//!     ApiKey, Body, BoxError, Quota,
//!     attempt_span::AttemptSpanLayer,
//!     auth::{AuthLayer, Origin},
//!     limit::{LocalLimiter, RateLimitLayer},
//!     request_id::RequestIdLayer,
//!     retry::RetryLayer,
//!     timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
//! };
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let base_url = "http://127.0.0.1:8080"; // `build_http` speaks no TLS
//!     let service = ServiceBuilder::new()
//!         .layer(RequestIdLayer::new())
//!         .layer(TotalTimeoutLayer::new(Duration::from_secs(60))?)
//!         .layer(RetryLayer::new().with_max_attempts(5)?)
//!         .layer(RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(100)?)))
//!         .layer(AttemptSpanLayer::new())
//!         .layer(AuthLayer::new(ApiKey::from_env("API_KEY")?, Origin::parse(base_url)?)?)
//!         .layer(AttemptTimeoutLayer::new(Duration::from_secs(10))?)
//!         .service(Client::builder(TokioExecutor::new()).build_http());
//!
//!     let request = http::Request::get(format!("{base_url}/v1/resources")).body(Body::empty())?;
//!     let response = service.clone().oneshot(request).await?;
//!     println!("{}", response.status());
//!     Ok(())
//! }
//! ```
//!
//! Clones of the stack share its limiter, its retry budget and its connections, so create the stack once.
//! The retry layer clones its inner service for each call, and the rate limit layer for each attempt. A clone of
//! hyper-util's client copies its settings. To copy only a pointer, share the client in an `Arc`, and pass this
//! `service` to `ServiceBuilder::service`:
//!
//! ```
//! # use {std::sync::Arc, hyper_util::{client::legacy::Client, rt::TokioExecutor}};
//! # use tower_outbound::{Body, body::ReplayBody};
//! let client = Arc::new(Client::builder(TokioExecutor::new()).build_http::<ReplayBody<Body>>());
//! let service = tower::service_fn(move |request| client.request(request));
//! ```
//!
//! [`guide::other_layers`] shows where the layers of tower and tower-http belong in such a stack, and
//! [`guide::stack`](mod@guide::stack#when-a-stack-does-not-compile) how to read the compiler's errors.
//! [`StackBuilder::layer`](stack::StackBuilder::layer) creates the whole stack of a preset for any
//! `Service<http::Request<ReplayBody<B>>>`.
//! [`StackBuilder::client_with_service`](stack::StackBuilder::client_with_service) creates a client over such a
//! service. The feature `reqwest` adds a service for a `reqwest::Client`: see [`adapter`].
//!
//! # Tests
//!
//! ```toml
//! [dev-dependencies]
//! tower-outbound = { version = "0.1", features = ["test-util"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! A scripted service replaces the client and its server, and records the requests. With tokio's paused clock, every
//! wait is instant and exact:
//!
//! ```
//! use std::time::Duration;
//!
//! use tower_outbound::{
//!     ApiKey, BoxError, preset,
//!     test_util::{ScriptedResponse, ScriptedService},
//! };
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), BoxError> {
//!     let unavailable = ScriptedResponse::status(503).with_header("retry-after", "2");
//!     let api = ScriptedService::new([unavailable, ScriptedResponse::status(200)]);
//!     let rates = preset::currency_rates("https://rates.example.com")?
//!         .with_api_key(ApiKey::new("s3cret")?)
//!         .client_with_service(api.clone())?;
//!
//!     assert_eq!(rates.get("/v1/latest").await?.status(), 200);
//!     let seen = api.seen();
//!     assert_eq!((seen.len(), seen[1].header("authorization")), (2, Some("Bearer s3cret")));
//!     assert!(seen[1].at - seen[0].at >= Duration::from_secs(2));
//!     Ok(())
//! }
//! ```
//!
//! The scripted service is a tower service, so it also works with custom layers and stacks. [`test_util`] also contains
//! a scripted loopback server, an assertion that checks every window against a quota, and repeatable jitter and ids.
//!
//! # Guide
//!
//! The [`guide`] has a page for each task:
//!
//! - Call an API: [your own](guide::own_api), [with reqwest](mod@guide::reqwest), [with gRPC](guide::grpc), [with
//!   kube or octocrab](guide::kube_octocrab).
//! - Compose layers: [order](guide::stack), [layers of other crates](guide::other_layers).
//! - Keep to a quota: [limiters](guide::limits), [tokens of language models](guide::llm_services),
//!   [learned quotas](guide::adaptive_limits), [priorities](guide::priorities), [several
//!   processes](guide::shared_quota).
//! - Handle failures: [retries](guide::retries), [timeouts](guide::timeouts), [networks](guide::networks),
//!   [keys](guide::credentials).
//! - Do a job: [list of jobs](guide#jobs), such as [pages of a list](guide::pagination), [tenants](guide::tenants),
//!   [ETags](guide::conditional_requests), [WebSockets](guide::websocket).
//! - Run it: [configuration](guide::configuration), [log and metrics](guide::observability), [tests](guide::testing).
//! - Look up: [migration from other crates](guide::migration), [questions](guide::faq), [terms](guide::glossary).
//!
//! # Features
//!
//! | feature | effect |
//! |---|---|
//! | `client` (default) | [`Client`] and its [`transport`], over hyper. Also enables `hyper` |
//! | `hyper` (default) | determines from the errors of hyper, hyper-util and h2 whether a request was sent, and why it failed |
//! | `rustls` (default) | TLS for the client: rustls with the ring provider and Mozilla's root certificates. Also enables `client` |
//! | `native-roots` | allows the application to use the operating system's root certificates for TLS. Also enables `rustls` |
//! | `proxy` | HTTP and SOCKS5 proxies, see `transport::Proxy`. Also enables `client` |
//! | `decompression` | gzip and brotli, see [`StackBuilder`](stack::StackBuilder). Also enables `client` |
//! | `json` | JSON requests and responses of the client. Also enables `client` |
//! | `oauth2` | fetches access tokens with OAuth 2 client credentials, see [`adapter`]. Also enables `json` |
//! | `serde` | reads the configuration of a stack from TOML, JSON or the environment, see [`preset`](preset#configuration-from-files) |
//! | `quanta` | allows the application to use a faster clock for a limiter |
//! | `metrics` | records counters, gauges and histograms with the `metrics` facade, see [`adapter`] |
//! | `otel` | sends the context of each attempt's span with its request, see [`adapter`] |
//! | `redis` | a limiter whose quota several processes share, see [`adapter`] |
//! | `reqwest` | a service over a `reqwest::Client`, see [`adapter`]. Also enables `hyper` |
//! | `backoff` | retry delays from the policies of the `backoff` crate, see [`adapter`] |
//! | `test-util` | a scripted service and assertions for tests, see [`test_util`]. With `client`, also a scripted server |
//!
//! The layers need no feature. For hyper's clients and clients built on them, such as tonic's, keep the feature
//! `hyper`, with `default-features = false` and `features = ["hyper"]`. Without this feature, the retry layer treats
//! every error of hyper as "maybe processed", so it retries only idempotent requests. In addition, errors then show the
//! debug data of an HTTP/2 GOAWAY, which the server chooses.
//!
//! # Examples
//!
//! The folder `examples` of the repository contains these programs. The package that cargo downloads does not contain
//! them. `cargo run --example NAME` runs one of them, with simulated servers on loopback and without a key.
//!
//! | example | what it shows | see |
//! |---|---|---|
//! | `quickstart` | presets with servers that fail and throttle, and a table of the results | [above](#a-client), [`preset`] |
//! | `compose` | single layers, with tower's `ConcurrencyLimit` | [above](#a-stack-of-layers), [`guide::other_layers`] |
//! | `settings` | services from a file and the environment, and errors of invalid ones | [`preset`](preset#configuration-from-files) |
//! | `reload` | a client that follows the changes of its file, and keeps its settings if the file is invalid | [`guide::configuration`] |
//! | `observe` | log, spans and metrics while a service fails and recovers | [`request_id`] |
//! | `sign` | signing requests with HMAC-SHA256 | [`auth::Sign`] |
//! | `unix_socket` | a server on a Unix socket | [`guide::networks`] |
//! | `websocket` | a WebSocket through the stack, and reconnecting | [`guide::websocket`] |
//! | `wrap_reqwest` | a preset in code with reqwest's types | [`adapter`] |
//! | `shared_limit` | four processes that share one quota in Redis. Halfway, the example stops Redis | [`adapter`] |
//! | `limiter_throughput` | the throughput of a limiter, with the parameters of the command line | [`limit`] |
//! | `plan` | a simulation of each limiter with a given quota: requests, rejections, waits and a plot | [`limit`] |
//! | `pictures` | drawing the pictures of this documentation from calls and simulations | |
//!
//! [`Client`]: struct.Client.html
//! [`test_util`]: test_util/index.html
#![cfg_attr(docsrs, feature(doc_cfg))]

#[macro_use]
mod macros;

// The layers, outermost first. rustdoc shows the methods of a type in the order of these modules.
pub mod request_id;

pub mod timeout;

pub mod retry;

pub mod limit;

pub mod attempt_span;

pub mod auth;

// The stack of the layers, and its uses.
#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client uses all of the builder"))]
pub mod stack;

#[cfg(feature = "client")]
pub mod client;

#[cfg(feature = "client")]
pub mod transport;

pub mod preset;

pub mod adapter;

// The types that the layers share.
pub mod body;
pub mod call;
mod clock;
mod config;
pub mod error;
pub mod guide;
mod headers;
#[cfg(not(fuzzing))]
#[allow(unreachable_pub, reason = "the fuzz targets call items that otherwise only the layers use")]
mod policy;
#[cfg(fuzzing)]
pub mod policy;
mod random;
mod secret;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;
mod uri;
mod uuid;

pub use self::auth::key::ApiKey;
pub use self::body::body::Body;
pub use self::call::report::Report;
#[cfg(feature = "client")]
pub use self::client::service::Client;
pub use self::config::InvalidConfig;
pub use self::error::{call::Error, chain::BoxError, kind::ErrorKind};
pub use self::policy::Quota;
pub use self::policy::backoff::{ExponentialBackoff, Jitter};

// The README's programs are complete, so that readers can paste them. They cannot declare the features that they need,
// so this `cfg` does.
#[cfg(all(doctest, feature = "json", feature = "reqwest"))]
#[doc = include_str!("../README.md")]
struct Readme;
