use std::time::Duration;

use tower_layer::Layer;

use super::Timeout;
use crate::{config::InvalidConfig, error::ErrorKind};

/// Bounds the time of a call or of one attempt, with [`Error::is_timeout`](crate::Error::is_timeout).
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::timeout::TimeoutLayer;
///
/// // The first layer goes outside of the retry layer, the second inside.
/// let total = TimeoutLayer::total(Duration::from_secs(60))?;
/// let per_attempt = TimeoutLayer::per_attempt(Duration::from_secs(10))?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer {
    kind: ErrorKind,
    limit: Duration,
}

impl TimeoutLayer {
    /// Sets one deadline for all inner layers. Keeps an earlier deadline of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn total(limit: Duration) -> Result<Self, InvalidConfig> {
        Self::new(ErrorKind::Deadline, "total timeout", limit)
    }

    /// Bounds each request through the inner layers by `limit`, and by the call's deadline.
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
        Ok(Self { kind, limit })
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout::new(inner, self.kind, self.limit)
    }
}
