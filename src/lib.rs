//! Tower layers for calling other people's HTTP APIs: a credential that goes nowhere else, a rate limit that
//! holds in every window, a retry that never sends twice what may have been done, and an id and a log line for
//! each call. Three presets stack them over a hyper client.
//!
//! # What happens to a request
//!
//! | layer, outermost first | what it does to a request |
//! |---|---|
//! | [`timeout`], body, by choice | ends the body of the answer when it stands still |
//! | [`request_id`] | gives the call an id, sends it with every attempt, logs the call when it ends |
//! | [`timeout`], total | sets one deadline for all that follows, up to the head of the answer |
//! | [`retry`] | sends it again after a back-off, when it failed in passing and that can do no harm |
//! | [`limit`] | makes each attempt wait for its permit, first come, first served, or refuses it at once |
//! | [`attempt`] | gives each attempt a span, and says of it in the request what you want said |
//! | [`auth`] | puts the credential on it, if it goes to the credential's own origin |
//! | [`timeout`], per attempt | bounds one attempt |
//! | your client, or ours | sends it |
//!
//! # Three ways in
//!
//! A ready client:
//!
//! ```no_run
//! use tower_outbound::{ApiKey, preset};
//!
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let rates = preset::currency_rates("https://rates.example.com")?
//!     .with_api_key(ApiKey::from_env("RATES_KEY")?)
//!     .client()?;
//! let response = rates.get("/v1/resources").await?;
//! # Ok(())
//! # }
//! ```
//!
//! Single layers, in a stack of your own:
//!
//! ```
//! use http_body_util::Empty;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::{
//!     Quota,
//!     limit::{RateLimitLayer, TokenBucket},
//!     request_id::RequestIdLayer,
//!     retry::RetryLayer,
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let client = tower::service_fn(|_| async {
//! #     Ok::<_, std::convert::Infallible>(http::Response::new(Empty::<bytes::Bytes>::new()))
//! # });
//! let mut service = ServiceBuilder::new()
//!     .layer(RequestIdLayer::new())
//!     .layer(RetryLayer::new().with_max_attempts(5)?)
//!     .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100)?)))
//!     .service(client);
//!
//! let request = http::Request::get("https://api.example.com/v1").body(Empty::<bytes::Bytes>::new())?;
//! let response = service.ready().await?.call(request).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where tower's own layers belong among these, and tower-http's, is a table: [`interplay`].
//!
//! A whole preset around another HTTP client: [`Preset::layer`](preset::Preset::layer) goes over any
//! `Service<http::Request<ReplayBody<B>>>`, and [`Preset::client_around`](preset::Preset::client_around) makes a ready
//! client of one.
//!
//! # A test of your own
//!
//! With the feature `test-util` a service that answers by a script stands in for the client and the server behind it, and
//! keeps what reached it. In a test under `tokio::time::pause` no wait takes time:
//!
//! ```
//! use tower::{Layer, ServiceExt};
//! use tower_outbound::{retry::RetryLayer, test_util::ScriptedService};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let api = ScriptedService::new([503, 200]);
//! let request = http::Request::get("https://api.example.com/v1").body(String::new())?;
//! let response = RetryLayer::new().layer(api.clone()).oneshot(request).await?;
//! assert_eq!((response.status().as_u16(), api.calls()), (200, 2));
//! # Ok(())
//! # }
//! ```
//!
//! # When a stack does not compile
//!
//! A method call on a stack whose service lacks something, such as `oneshot`, only says that "trait bounds were not
//! satisfied". This function says which, put around the stack with the body that is sent:
//!
//! ```
//! fn check<B, S: tower::Service<http::Request<B>>>(service: S) -> S {
//!     service
//! }
//!
//! # type Body = http_body_util::Empty<bytes::Bytes>;
//! # let service = tower::service_fn(|_: http::Request<Body>| async { Ok::<_, std::io::Error>(http::Response::new(())) });
//! let service = check::<Body, _>(service);
//! ```
//!
//! The layers ask for no more than they use: a service is `Clone` (for [`retry`], [`limit`] and a preset), answers with an
//! `http::Response` and fails with what becomes a [`BoxError`]. [`retry`] also wants to know how to read the two bodies, and
//! hands on a [`ReplayBody`](body::ReplayBody) of the request's. Nothing need be `Debug`, `Send` or `'static`, but the
//! body of a request under a preset or a signature, which is `Send + 'static`.
//!
//! # Time
//!
//! Everything runs on tokio's clock, so that a test under `tokio::time::pause` is exact and takes no time.
//!
//! # Features
//!
//! - `rustls` (default): TLS for the ready client, by rustls with the ring provider and Mozilla's roots.
//! - `quanta`: a cheaper clock for a limiter, by choice.
//! - `native-roots`: the roots of the operating system as well, by choice at run time.
//! - `backoff`, `backon`: the back-offs of those crates for [`retry`], see [`adapter`].
//! - `json`: JSON in and out of the ready client.
//! - `metrics`: counters, gauges and histograms of the `metrics` facade, see [`adapter`].
//! - `reqwest`: a service of a `reqwest::Client` for the layers to go over, see [`adapter`].
//! - `serde`: settings from TOML, JSON or the environment, see `settings`.
//! - `otel`: the context of each attempt's span in its request, see [`adapter`].
//! - `test-util`: a scripted service and server, and a check of the window, for tests of your own: `test_util`.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod adapter;
pub mod attempt;
pub mod auth;
pub mod body;
pub mod call;
pub mod client;
mod clock;
pub mod error;
mod id;
pub mod interplay;
pub mod limit;
mod observe;
pub mod policy;
pub mod preset;
mod random;
pub mod request_id;
pub mod retry;
#[cfg(feature = "serde")]
pub mod settings;
#[cfg(feature = "test-util")]
pub mod test_util;
pub mod timeout;

pub use self::auth::ApiKey;
pub use self::body::Body;
pub use self::call::Report;
pub use self::client::Client;
pub use self::error::{BoxError, Error, InvalidConfig};
pub use self::policy::{ExponentialBackoff, Jitter, Quota};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
