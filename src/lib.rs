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
//! | default headers, of a preset | sets the headers that the caller has not set |
//! | [`timeout`], total | sets one deadline for all that follows, up to the head of the answer |
//! | [`retry`] | sends it again after a back-off, when it failed in passing and that can do no harm |
//! | [`limit`] | makes each attempt wait for its permit, first come, first served, or refuses it at once |
//! | [`attempt_span`] | gives each attempt a span, and says of it in the request what you want said |
//! | [`auth`] | puts the credential on it, if it goes to the credential's own origin |
//! | [`timeout`], per attempt | bounds one attempt |
//! | your client, or ours | sends it |
//!
//! # From nothing to a client
//!
//! ```toml
//! [dependencies]
//! tower-outbound = "0.1"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! A [`preset`] for one of three kinds of service, with its address and its key, gives a ready [`Client`]:
//!
//! ```no_run
//! use tower_outbound::{ApiKey, BoxError, Report, preset};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let rates = preset::currency_rates("https://rates.example.com")?
//!         .with_api_key(ApiKey::from_env("RATES_KEY")?)
//!         .client()?;
//!
//!     let response = rates.get("/v1/resources").await?;
//!     println!("{}", response.status());
//!     if let Some(report) = Report::from_response(&response) {
//!         println!("{} attempts, {:?} waiting for the limiter", report.attempt_count(), report.waited());
//!     }
//!     println!("{:?}", response.into_body().collect(64 * 1024).await?);
//!     Ok(())
//! }
//! ```
//!
//! An answer is a response, whatever its status; an [`Error`] means that there is none. A service that there is no preset for
//! starts from [`Client::builder`], with a name for the log and a quota of your own:
//!
//! ```
//! use tower_outbound::{ApiKey, Client, InvalidConfig, Quota};
//!
//! fn orders(key: ApiKey) -> Result<Client, InvalidConfig> {
//!     Client::builder("https://orders.example.com/v2")?
//!         .with_name("orders")
//!         .with_api_key(key)
//!         .with_quota(Quota::per_minute(300)?)
//!         .client()
//! }
//! # orders(ApiKey::new("s3cret").unwrap()).unwrap();
//! ```
//!
//! With the feature `serde`, a `StackConfig` holds the same configuration, [read from a file or the
//! environment](preset#configuration-from-files).
//!
//! # A stack of your own
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
//! The layers by themselves, in their order, around any client that is a tower service; take those that you need, each works
//! alone:
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
//!     limit::{RateLimitLayer, TokenBucket},
//!     request_id::RequestIdLayer,
//!     retry::RetryLayer,
//!     timeout::TimeoutLayer,
//! };
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let base_url = "http://127.0.0.1:8080"; // `build_http` speaks no TLS
//!     let service = ServiceBuilder::new()
//!         .layer(RequestIdLayer::new())
//!         .layer(TimeoutLayer::total(Duration::from_secs(60))?)
//!         .layer(RetryLayer::new().with_max_attempts(5)?)
//!         .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100)?)))
//!         .layer(AttemptSpanLayer::new())
//!         .layer(AuthLayer::new(ApiKey::from_env("API_KEY")?, Origin::parse(base_url)?)?)
//!         .layer(TimeoutLayer::per_attempt(Duration::from_secs(10))?)
//!         .service(Client::builder(TokioExecutor::new()).build_http());
//!
//!     let request = http::Request::get(format!("{base_url}/v1/resources")).body(Body::empty())?;
//!     let response = service.clone().oneshot(request).await?;
//!     println!("{}", response.status());
//!     Ok(())
//! }
//! ```
//!
//! Clones of the stack share its limiter, its budget and its connections: make it once. Where tower's own layers belong among
//! these, and tower-http's, is a table: [`interplay`].
//!
//! A whole preset in their place: [`StackBuilder::layer`](stack::StackBuilder::layer) goes over any
//! `Service<http::Request<ReplayBody<B>>>`, and [`StackBuilder::client_with_service`](stack::StackBuilder::client_with_service) makes a ready
//! client of one. For a `reqwest::Client` the service is there, with the feature `reqwest`: see [`adapter`].
//!
//! # A test of your own
//!
//! ```toml
//! [dev-dependencies]
//! tower-outbound = { version = "0.1", features = ["test-util"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! A service that answers by a script stands in for the client and the server behind it, and keeps what reached it. On
//! tokio's paused clock no wait takes time, and each is exact:
//!
//! ```
//! use std::time::Duration;
//!
//! use tower_outbound::{
//!     ApiKey, BoxError, preset,
//!     test_util::{Answer, ScriptedService},
//! };
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), BoxError> {
//!     let unavailable = Answer::status(503).with_header("retry-after", "2");
//!     let api = ScriptedService::new([unavailable, Answer::status(200)]);
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
//! A layer or a stack of your own goes over it just so, for it is a tower service. A server on loopback with such a script,
//! a check of every window against a quota, jitter and ids that repeat: [`test_util`].
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
//! | feature | what it adds |
//! |---|---|
//! | `client` (default) | [`Client`], over hyper-util's pooled client. Brings `hyper` |
//! | `hyper` (default) | reads from errors of hyper, hyper-util and h2 whether a request was sent, and why it failed |
//! | `rustls` (default) | TLS for the client: rustls with the ring provider and Mozilla's roots. Brings `client` |
//! | `native-roots` | the operating system's roots for TLS, if the application asks for them. Brings `rustls` |
//! | `json` | JSON calls of the client. Brings `client` |
//! | `serde` | configuration of a stack from TOML, JSON or the environment, see [`preset`](preset#configuration-from-files) |
//! | `quanta` | a faster clock for a limiter, if the application asks for it |
//! | `metrics` | counters, gauges and histograms of the `metrics` facade, see [`adapter`] |
//! | `otel` | sends the context of each attempt's span with its request, see [`adapter`] |
//! | `redis` | a limiter that several processes share, see [`adapter`] |
//! | `reqwest` | the layers over a `reqwest::Client`, see [`adapter`]. Brings `hyper` |
//! | `backoff` | retry delays of that crate's policies, see [`adapter`] |
//! | `test-util` | a scripted service and checks for tests, see [`test_util`]. With `client` also a scripted server |
//!
//! The layers need none of them. Over hyper's clients or a client built on them, such as tonic's, keep `hyper`. Without
//! it, every error of hyper counts as "maybe processed", so that only idempotent requests are retried. An error then also
//! shows the text that the server chose for an HTTP/2 GOAWAY. The dependency then has `default-features = false` and
//! `features = ["hyper"]`.
//!
//! # Examples
//!
//! Programs in the folder `examples` of the repository, not of the package that cargo downloads. There each runs by
//! `cargo run --example NAME` against stand-ins on loopback, without a key. On these pages:
//!
//! | example | what it shows | here |
//! |---|---|---|
//! | `quickstart` | the three presets against servers that fail and throttle, and a table in the end | [above](#from-nothing-to-a-client), [`preset`] |
//! | `compose` | the layers by hand, with tower's `ConcurrencyLimit` | [above](#a-stack-of-your-own), [`interplay`] |
//! | `settings` | services from a file and the environment, and mistakes | [`preset`](preset#configuration-from-files) |
//! | `observe` | log, spans and metrics of a bad day | [`request_id`] |
//! | `sign` | requests signed with HMAC-SHA256 | [`auth::Sign`] |
//! | `websocket` | a WebSocket through the stack, and reconnecting | |
//! | `wrap_reqwest` | code of reqwest's own types over a preset | [`adapter`] |
//! | `shared_limit` | four processes with one quota in Redis, which is stopped in the middle | [`adapter`] |
//! | `limiter_throughput` | a limiter at work, by the numbers that you give | [`limit`] |
//!
//! [`Client`]: client/struct.Client.html
//! [`test_util`]: test_util/index.html
#![cfg_attr(docsrs, feature(doc_cfg))]

#[macro_use]
mod macros;

pub mod adapter;
pub mod attempt_span;
pub mod auth;
pub mod body;
pub mod call;
#[cfg(feature = "client")]
pub mod client;
mod clock;
mod config;
pub mod error;
mod headers;
mod id;
pub mod interplay;
pub mod limit;
#[cfg(not(fuzzing))]
#[allow(unreachable_pub, reason = "the fuzz targets call what the layers only use inside")]
mod policy;
#[cfg(fuzzing)]
pub mod policy;
pub mod preset;
mod random;
pub mod request_id;
pub mod retry;
mod secret;
#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "the client uses all of the builder"))]
pub mod stack;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;
pub mod timeout;

pub use self::auth::key::ApiKey;
pub use self::body::body::Body;
pub use self::call::report::Report;
#[cfg(feature = "client")]
pub use self::client::service::Client;
pub use self::config::InvalidConfig;
pub use self::error::{call::Error, chain::BoxError, kind::ErrorKind};
pub use self::policy::Quota;
pub use self::policy::backoff::{ExponentialBackoff, Jitter};

// Its programs are whole, for who pastes them, and so can't ask for the features that they need.
#[cfg(all(doctest, feature = "client", feature = "reqwest", feature = "serde"))]
#[doc = include_str!("../README.md")]
struct Readme;
