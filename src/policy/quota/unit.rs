//! What a quota counts.

use super::Quota;
use crate::{config::InvalidConfig, policy::Unit};

impl Quota {
    /// Sets what the quota counts. Default: requests.
    ///
    /// For a unit other than requests, each request takes its [`Amounts`](crate::limit::Amounts). They are estimates until
    /// they are [settled](crate::limit::Settlement).
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::Unit};
    ///
    /// let tokens = Quota::per_minute(30_000)?.with_unit(Unit::Tokens)?;
    /// assert_eq!(format!("{tokens:#}"), "30000 tokens/60s, burst 3000, margin 1s");
    /// assert_eq!("30000 tokens/1m".parse::<Quota>()?, tokens);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the unit is [`Unit::Concurrency`](crate::limit::Unit::Concurrency), which
    /// [`with_max_in_flight`](crate::limit::LocalLimiter::with_max_in_flight) limits, or if the quota is a
    /// [bucket](Self::bucket) and does not count requests.
    pub fn with_unit(self, unit: Unit) -> Result<Self, InvalidConfig> {
        let expected = match unit {
            Unit::Requests => return Ok(Self { unit, ..self }),
            Unit::Concurrency => "a unit other than concurrency, which `max_in_flight` limits",
            _ if self.refill.is_some() => "requests, because the quota is a bucket",
            _ => return Ok(Self { unit, ..self }),
        };
        Err(InvalidConfig::new("quota unit", unit.as_str(), expected))
    }

    pub(crate) fn counts_requests(&self) -> bool {
        self.unit == Unit::Requests
    }

    /// Returns what the quota counts.
    pub fn unit(&self) -> Unit {
        self.unit
    }
}
