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
mod total;

pub use self::attempt::{AttemptTimeout, AttemptTimeoutFuture, AttemptTimeoutLayer, AttemptTimeoutOverride};
pub use self::body::{BodyIdleFuture, BodyIdleTimeout, BodyIdleTimeoutLayer};
pub use self::total::{TotalTimeout, TotalTimeoutFuture, TotalTimeoutLayer};

use std::time::Duration;

use crate::config::{InvalidConfig, text::Written};

/// The configuration of a call's timeouts. It also creates the layers of these timeouts.
///
/// | field | default | |
/// |---|---|---|
/// | `total` | `60s` | the whole call up to the response headers. It lasts as long as the window of a quota per minute |
/// | `attempt` | `10s`, at most `total` | one attempt. Each frame of the request's body restarts it. Three attempts and their backoff fit into a minute |
/// | `body_idle` | none | the longest stall of a response's body |
///
/// The defaults are estimates, because the services of the presets publish no response times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(expecting = "a table", default, deny_unknown_fields))]
pub struct TimeoutConfig {
    pub(crate) total: Written<Duration>,
    pub(crate) attempt: Option<Written<Duration>>,
    pub(crate) body_idle: Option<Written<Duration>>,
}

impl Default for TimeoutConfig {
    fn default() -> Self {
        Self { total: Written(Duration::from_secs(60)), attempt: None, body_idle: None }
    }
}

impl TimeoutConfig {
    /// Creates the layer of the total timeout.
    ///
    /// # Errors
    ///
    /// Returns an error if the timeout is zero.
    pub fn total_layer(&self) -> Result<TotalTimeoutLayer, InvalidConfig> {
        TotalTimeoutLayer::new(self.total.0).map_err(|error| error.at("total"))
    }

    /// Creates the layer of the attempt timeout.
    ///
    /// # Errors
    ///
    /// Returns an error if the timeout is zero or longer than the total timeout.
    pub fn attempt_layer(&self) -> Result<AttemptTimeoutLayer, InvalidConfig> {
        let total = self.total.0;
        let attempt = self.attempt.map_or(Duration::from_secs(10).min(total), |attempt| attempt.0);
        if attempt > total {
            let expected = format!("at most {total:?} (the total timeout)");
            return Err(InvalidConfig::new("attempt timeout", format!("{attempt:?}"), expected).at("attempt"));
        }
        AttemptTimeoutLayer::new(attempt).map_err(|error| error.at("attempt"))
    }

    /// Creates the layer of the body's idle timeout. The layer has no effect if no idle timeout is configured.
    ///
    /// # Errors
    ///
    /// Returns an error if the timeout is zero.
    pub fn body_idle_layer(&self) -> Result<BodyIdleTimeoutLayer, InvalidConfig> {
        let layer = self.body_idle.map(|limit| BodyIdleTimeoutLayer::new(limit.0)).transpose();
        Ok(layer.map_err(|error| error.at("body_idle"))?.unwrap_or(BodyIdleTimeoutLayer::none()))
    }
}
