use std::time::Duration;

use super::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer};
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
