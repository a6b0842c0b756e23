//! Three bounds of time: the total deadline of a call, the timeout of one attempt, and, by choice, how long the body of
//! an answer may stand still.
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
//!     // … retry, limit and auth stand here …
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
//! Without the third a download whose server or network falls silent never ends: see [`BodyIdleTimeoutLayer`].
//!
//! # Order
//!
//! The total deadline stands outside retry, so that it covers queueing, every attempt, every back-off and the
//! head of the answer. The layers further in read it and give up at once what can't fit. The attempt's timeout
//! stands innermost: it covers neither the wait for the limiter nor the back-off, and never outlasts the
//! deadline. The bound of the body stands anywhere, outermost in our presets: it only wraps what comes back.
//!
//! # Surprises
//!
//! - The first two end with the head of the answer: reading its body is not covered by them. What reads it for you, such
//!   as the ready client's `get_json`, keeps to the deadline.
//! - The timer is armed only once the inner service is found pending.

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
