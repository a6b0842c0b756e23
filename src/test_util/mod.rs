//! Tests of your own stack: a service or a server that answers by a script and keeps what reached it, a check that no
//! window was overrun, and ids that repeat. With the feature `test-util`, for `[dev-dependencies]`; nothing else of this
//! crate uses it.
//!
//! ```
//! use std::time::Duration;
//! use http::Request;
//! use tower::{Layer, ServiceExt};
//! use tower_outbound::{
//!     ApiKey, Body, BoxError, Quota, preset,
//!     test_util::{Answer, ScriptedService, repeatable},
//! };
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), BoxError> {
//!     let quota = Quota::new(3, Duration::from_secs(10))?;
//!     let rates = preset::currency_rates("https://rates.example.com")?
//!         .with_api_key(ApiKey::new("s3cret")?)
//!         .with_quota(quota);
//!     let unavailable = Answer::status(503).with_header("retry-after", "2");
//!     let api = ScriptedService::new([unavailable, Answer::status(200).with_body("1.08")]);
//!     let stack = repeatable(rates, 7).layer()?.layer(api.clone());
//!
//!     for _ in 0..5 {
//!         let request = Request::get("https://rates.example.com/v1/latest").body(Body::empty())?;
//!         assert_eq!(stack.clone().oneshot(request).await?.status(), 200);
//!     }
//!     let seen = api.seen();
//!     // The first call took two attempts, under one id, and not before the time that the server asked for.
//!     assert_eq!((seen[0].attempt, seen[1].attempt, seen[2].attempt), (Some(1), Some(2), Some(1)));
//!     assert_eq!(seen[1].header("x-request-id"), Some("req-1"));
//!     assert_eq!(seen[2].header("x-request-id"), Some("req-2"));
//!     assert!(seen[1].at - seen[0].at >= Duration::from_secs(2));
//!     api.arrivals().assert_within(quota);
//!     Ok(())
//! }
//! ```
//!
//! | | what it is for |
//! |---|---|
//! | [`ScriptedService`], [`Answer`], [`Seen`] | stands in for a client and the server behind it |
//! | [`ScriptedServer`] | puts that behind a real connection, for a ready client |
//! | [`Arrivals`], [`Arrival`] | holds what was let through to a quota |
//! | [`repeatable`], [`SequentialIds`] | a preset, or a request id layer, that does the same in each run; for a single layer also [`RetryLayer::with_seed`](crate::retry::RetryLayer::with_seed) |
//!
//! # Panics
//!
//! That is how a test kit reports what its user did wrong: a service that is called before it is ready, a script that is
//! over, a window that is overrun. Each method says when.
//!
//! # Surprises
//!
//! - Paused time needs tokio's own feature `test-util`, which this one does not bring.
//! - A cache of requests, a hedge or a test in parallel may reach a script in another order than it was meant for:
//!   [`ScriptedService::answering`] answers by what a request is.
//! - Any of this may be used on a service that is not of this crate. Only the number of the attempt is known from its
//!   layers alone.
#![allow(clippy::panic, reason = "a test kit panics in a test, and says so in its manual")]

mod answer;
mod arrivals;
mod ending;
mod ids;
mod script;
mod seen;
#[cfg(feature = "client")]
mod server;
mod service;
mod window;

pub use self::answer::Answer;
pub use self::arrivals::{Arrival, Arrivals, NoteArrivals};
pub use self::ids::{SequentialIds, repeatable};
pub use self::seen::Seen;
#[cfg(feature = "client")]
pub use self::server::ScriptedServer;
pub use self::service::ScriptedService;
