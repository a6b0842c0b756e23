//! Test doubles and assertions for stacks: a scripted service or server that records its requests, an assertion for
//! rate-limit windows, and repeatable jitter and ids. Add the crate to `[dev-dependencies]` with the feature
//! `test-util`.
//!
//! ```
//! use std::time::Duration;
//! use http::Request;
//! use tower::{Layer, ServiceExt};
//! use tower_outbound::{
//!     ApiKey, Body, BoxError, Quota, preset,
//!     test_util::{ScriptedResponse, ScriptedService, deterministic},
//! };
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), BoxError> {
//!     let quota = Quota::new(3, Duration::from_secs(10))?;
//!     let rates = preset::currency_rates("https://rates.example.com")?
//!         .with_api_key(ApiKey::new("s3cret")?)
//!         .with_quota(quota);
//!     let unavailable = ScriptedResponse::status(503).with_header("retry-after", "2");
//!     let api = ScriptedService::new([unavailable, ScriptedResponse::status(200).with_body("1.08")]);
//!     let stack = deterministic(rates, 7).layer()?.layer(api.clone());
//!
//!     for _ in 0..5 {
//!         let request = Request::get("https://rates.example.com/v1/latest").body(Body::empty())?;
//!         assert_eq!(stack.clone().oneshot(request).await?.status(), 200);
//!     }
//!     let seen = api.seen();
//!     // The first call took two attempts with one id, and waited for the requested delay.
//!     assert_eq!((seen[0].attempt, seen[1].attempt, seen[2].attempt), (Some(1), Some(2), Some(1)));
//!     assert_eq!(seen[1].header("x-request-id"), Some("req-1"));
//!     assert_eq!(seen[2].header("x-request-id"), Some("req-2"));
//!     assert!(seen[1].at - seen[0].at >= Duration::from_secs(2));
//!     api.arrivals().assert_within(quota);
//!     Ok(())
//! }
//! ```
//!
//! Concurrent calls of a client take three seconds of paused time and no real time:
//!
//! ```
//! # #[cfg(feature = "client")]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use tokio::{task::JoinSet, time::Instant};
//! use tower_outbound::{Client, Quota, test_util::ScriptedService};
//!
//! let (api, quota) = (ScriptedService::new([200]), Quota::per_second(10)?);
//! let client = Client::builder("https://api.example.com")?
//!     .without_credential()
//!     .with_quota(quota)
//!     .client_with_service(api.clone())?;
//! let start = Instant::now();
//! let calls: JoinSet<_> = (0..40).map(|_| client.get("/").send()).collect();
//! for response in calls.join_all().await {
//!     assert_eq!(response?.status(), 200);
//! }
//! api.arrivals().assert_within(quota);
//! assert!(start.elapsed().as_secs() >= 3);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "client"))]
//! # fn main() {}
//! ```
//!
//! | item | purpose |
//! |---|---|
//! | [`ScriptedService`], [`ScriptedResponse`], [`Seen`] | replaces a client and its server |
//! | [`ScriptedServer`] | serves a `ScriptedService` on loopback, for a test with a real client |
//! | [`ServerLimit`], [`LimitHeaders`] | simulates a server that limits the rate of requests |
//! | [`Arrivals`], [`Arrival`] | asserts that no window exceeds a quota |
//! | [`deterministic`] | fixes the jitter and the request ids of a stack. For a single layer, see [`RetryLayer::with_seed`](crate::retry::RetryLayer::with_seed) and [`RequestIdLayer::with_maker`](crate::request_id::RequestIdLayer::with_maker) |
//!
//! # Panics
//!
//! These items panic on a mistake in a test or in the stack under test. Examples are a service that is called before it
//! is ready, a script without a response for a request, and an exceeded quota. Each method documents when it panics.
//!
//! # Notes
//!
//! - Paused time requires tokio's feature `test-util`, which this crate's feature `test-util` does not enable.
//! - Caches, hedging and parallel tests can change the order of requests. Use [`ScriptedService::from_fn`] to select
//!   the response by the request and not by the order.
//! - Only the layers of this crate set [`Seen::attempt`].
#![allow(clippy::panic, reason = "the documented way to fail a test")]

mod arrivals;
mod count;
mod limit_headers;
#[allow(missing_docs, missing_debug_implementations, reason = "outside of semantic versioning")]
pub mod limiter;
mod scripted_response;
#[cfg(feature = "client")]
mod server;
mod server_limit;
mod service;

pub use self::arrivals::{Arrival, Arrivals};
pub use self::limit_headers::LimitHeaders;
pub use self::scripted_response::ScriptedResponse;
#[cfg(feature = "client")]
pub use self::server::ScriptedServer;
pub use self::server_limit::ServerLimit;
pub use self::service::{ScriptedService, Seen};

use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

use crate::stack::StackBuilder;

/// Makes the calls of a stack repeatable: the jitter is drawn from `seed`, and the request ids are `req-1`, `req-2` and
/// so on.
///
/// All clones of the builder, and all layers built from it, share one sequence of jitter and one sequence of ids.
/// Idempotency keys and the jitter in the backoff of a key provider stay random.
///
/// ```
/// use tower_outbound::{preset, test_util};
///
/// let rates = test_util::deterministic(preset::currency_rates("https://rates.example.com")?, 7);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[must_use]
pub fn deterministic(mut builder: StackBuilder, seed: u64) -> StackBuilder {
    let count = AtomicU64::new(0);
    let make = move || {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        HeaderValue::try_from(format!("req-{number}")).unwrap_or_else(|_| HeaderValue::from(number))
    };
    builder.request_id = builder.request_id.with_maker(make);
    builder.map_retry(|retry| retry.with_seed(seed))
}
