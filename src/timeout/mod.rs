//! Limits the time of a call in three ways. [`TotalTimeoutLayer`] limits the whole call, [`AttemptTimeoutLayer`] limits
//! each attempt, and the optional [`BodyIdleTimeoutLayer`] ends a response body that stalls.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::timeout::{AttemptTimeoutLayer, TotalTimeoutLayer};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let service = ServiceBuilder::new()
//!     .layer(TotalTimeoutLayer::new(Duration::from_secs(60))?)
//!     // … retry, limit and auth …
//!     .layer(AttemptTimeoutLayer::new(Duration::from_secs(15))?)
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
//! - Place the total timeout outside the retry layer, so that it covers queueing, all attempts, their backoff and the
//!   response headers. The inner layers read its deadline, and fail immediately if a wait cannot meet it.
//! - Place the attempt timeout innermost. It covers neither the wait for the limiter nor the backoff, and ends at the
//!   deadline at the latest.
//! - Place the body's idle timeout anywhere, because it only wraps the response's body. The presets place it outermost.
//!
//! # Notes
//!
//! - The total timeout and the attempt timeout do not cover the response's body. The client is an exception: the
//!   methods of its response that read the body, such as `text`, also end at the deadline.
//! - The timer is created only if the first poll of the inner service's future returns `Pending`.
//! - The total timeout of a [stack](crate::stack) creates no timer while an attempt timeout waits, because the attempt
//!   ends at the deadline at the latest.

mod attempt;
mod body;
mod config;
mod expiry;
mod total;

pub use self::attempt::{AttemptTimeout, AttemptTimeoutFuture, AttemptTimeoutLayer, AttemptTimeoutOverride};
pub use self::body::{BodyIdleFuture, BodyIdleTimeout, BodyIdleTimeoutLayer};
pub use self::config::TimeoutConfig;
pub use self::total::{TotalTimeout, TotalTimeoutFuture, TotalTimeoutLayer};
