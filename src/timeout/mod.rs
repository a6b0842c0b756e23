//! Limits the time of a call in three ways: the total timeout of the call, the timeout of each attempt and, optionally,
//! the idle timeout of the response's body.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::timeout::TimeoutLayer;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let service = ServiceBuilder::new()
//!     .layer(TimeoutLayer::total(Duration::from_secs(60))?)
//!     // … retry, limit and auth …
//!     .layer(TimeoutLayer::per_attempt(Duration::from_secs(15))?)
//!     .service_fn(|_: http::Request<()>| async {
//!         tokio::time::sleep(Duration::from_secs(16)).await;
//!         Ok::<_, std::convert::Infallible>(http::Response::new(()))
//!     });
//!
//! let error = service.oneshot(http::Request::new(())).await.unwrap_err();
//! assert!(error.is_timeout() && !error.is_deadline());
//! # Ok(())
//! # }
//! ```
//!
//! Without an idle timeout, a download can hang forever if the server or the network stalls: see
//! [`BodyIdleTimeoutLayer`].
//!
//! # Order
//!
//! - Place the total timeout outside retry, so that it covers queueing, all attempts, their backoff and the response
//!   headers. The inner layers read its deadline, and fail immediately if a wait cannot meet it.
//! - Place the attempt timeout innermost. It covers neither the wait for the limiter nor the backoff, and never exceeds
//!   the deadline.
//! - Place the body's idle timeout anywhere, because it only wraps the response's body. The presets place it outermost.
//!
//! # Notes
//!
//! - The total timeout and the attempt timeout do not cover the response's body. The exceptions are the JSON calls of
//!   the ready client, such as `get_json`, which also read the body within the deadline.
//! - The timer is created only if the inner service is not ready at its first poll.

mod body;
mod config;
mod future;
mod layer;
mod service;

pub use self::body::{BodyIdleFuture, BodyIdleTimeout, BodyIdleTimeoutLayer};
pub use self::config::TimeoutConfig;
pub use self::future::ResponseFuture;
pub use self::layer::TimeoutLayer;
pub use self::service::Timeout;
