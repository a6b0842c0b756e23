use std::time::Duration;

use tower_layer::Layer;

use super::{
    Timeout,
    limit::{Limit, Position},
};
use crate::{config::InvalidConfig, error::ErrorKind};

/// Limits the time of a call or of one attempt. [`Error::is_timeout`](crate::Error::is_timeout) returns `true` for the
/// error of an expired timeout.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::timeout::TimeoutLayer;
///
/// // Place `total` outside the retry layer, and `per_attempt` inside it.
/// let total = TimeoutLayer::total(Duration::from_secs(60))?;
/// let per_attempt = TimeoutLayer::per_attempt(Duration::from_secs(10))?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer {
    limit: Limit,
}

impl TimeoutLayer {
    /// Creates the layer of the total timeout. It sets one deadline for all inner layers, unless the call already has
    /// an earlier deadline. The time counts from the start of the call, which may be in an outer layer such as
    /// [`RequestIdLayer`](crate::request_id::RequestIdLayer). The
    /// [timeout of a client's request](crate::guide::timeouts#time-limits-of-one-call) replaces the limit.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn total(limit: Duration) -> Result<Self, InvalidConfig> {
        Self::new(ErrorKind::Deadline, "total timeout", limit)
    }

    /// Creates the layer of the attempt timeout. One attempt may take at most `limit`, and ends at the call's deadline
    /// at the latest.
    ///
    /// Below a [retry](crate::retry) layer, each frame of the request's body restarts the time, so that an upload may
    /// take longer while it makes progress. After the end of the body, the time limits the wait for the response
    /// headers.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn per_attempt(limit: Duration) -> Result<Self, InvalidConfig> {
        Self::new(ErrorKind::AttemptTimeout, "attempt timeout", limit)
    }

    fn new(kind: ErrorKind, field: &'static str, limit: Duration) -> Result<Self, InvalidConfig> {
        if limit.is_zero() {
            return Err(InvalidConfig::new(field, "0ns", "more than zero"));
        }
        Ok(Self { limit: Limit::new(kind, limit) })
    }

    /// Declares that this is a timeout of a stack, which has both timeouts.
    pub(crate) fn in_stack(self) -> Self {
        let is_total = self.limit.kind == ErrorKind::Deadline;
        let position = if is_total { Position::StackTotal } else { Position::StackAttempt };
        Self { limit: Limit { position, ..self.limit } }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout::new(inner, self.limit)
    }
}
