use std::{sync::Arc, time::Duration};

use tower_layer::Layer;

use super::Retry;
use crate::{body::DEFAULT_REPLAY_LIMIT, error::InvalidConfig, policy::ExponentialBackoff, random::Random};

/// Sends a request again when it failed in passing and sending it again can do no harm.
///
/// # Default
///
/// 3 attempts (as the AWS SDKs make); the back-offs of
/// [`ExponentialBackoff::transient`] and [`ExponentialBackoff::throttled`]; a `Retry-After` of up to 120 s
/// obeyed; bodies of up to 1 MiB sent again.
///
/// # Clone
///
/// Clones share the source of jitter, so that no two of them draw the same.
#[derive(Debug, Clone)]
pub struct RetryLayer {
    policy: Arc<Policy>,
}

/// What the layer was told, shared by all its services.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) max_attempts: u32,
    pub(super) transient: ExponentialBackoff,
    pub(super) throttled: ExponentialBackoff,
    pub(super) max_retry_after: Duration,
    pub(super) replay_limit: usize,
    pub(super) random: Arc<Random>,
}

impl RetryLayer {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            policy: Arc::new(Policy {
                max_attempts: 3,
                transient: ExponentialBackoff::transient(),
                throttled: ExponentialBackoff::throttled(),
                max_retry_after: Duration::from_secs(120),
                replay_limit: DEFAULT_REPLAY_LIMIT,
                random: Arc::new(Random::from_entropy()),
            }),
        }
    }

    /// At most `max_attempts` attempts, the first counted. 3 by default; 1 means that nothing is sent again.
    ///
    /// # Errors
    ///
    /// When it is 0.
    pub fn with_max_attempts(self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        if max_attempts == 0 {
            return Err(InvalidConfig::new("max attempts", "0", "at least 1: the first attempt counts"));
        }
        Ok(self.set(|policy| policy.max_attempts = max_attempts))
    }

    /// The back-off after a failure that is not a throttling.
    pub fn with_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.transient = backoff)
    }

    /// The back-off after a 429.
    pub fn with_throttled_backoff(self, backoff: ExponentialBackoff) -> Self {
        self.set(|policy| policy.throttled = backoff)
    }

    /// The longest pause asked for by the server that is waited out. When it asks for more, its answer is handed
    /// over at once. 120 s by default.
    pub fn with_max_retry_after(self, longest: Duration) -> Self {
        self.set(|policy| policy.max_retry_after = longest)
    }

    /// The largest body, in bytes, that is kept in memory to be sent again. 1 MiB by default; a larger one is
    /// sent once.
    pub fn with_replay_limit(self, bytes: usize) -> Self {
        self.set(|policy| policy.replay_limit = bytes)
    }

    /// Draws the jitter from this seed: the same delays in every run of a test.
    pub fn with_seed(self, seed: u64) -> Self {
        self.set(|policy| policy.random = Arc::new(Random::seeded(seed)))
    }

    fn set(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }
}

impl Default for RetryLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry::new(inner, Arc::clone(&self.policy))
    }
}
