//! What a quota counts.

use std::time::Duration;

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
    ///
    /// let points: Quota = "bucket 1000 points, 50/1s".parse()?;
    /// assert_eq!((points.limit(), points.unit()), (1_000, Unit::Points));
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the unit is [`Unit::Concurrency`](crate::limit::Unit::Concurrency), which
    /// [`with_max_in_flight`](crate::limit::LocalLimiter::with_max_in_flight) limits.
    pub fn with_unit(self, unit: Unit) -> Result<Self, InvalidConfig> {
        if unit == Unit::Concurrency {
            let expected = "a unit other than concurrency, which `max_in_flight` limits";
            return Err(InvalidConfig::new("quota unit", unit.as_str(), expected));
        }
        Ok(Self { unit, ..self })
    }

    /// Returns whether the quota is a [bucket](Self::bucket).
    pub(crate) fn is_bucket(&self) -> bool {
        self.refill.is_some()
    }

    /// Returns how long an amount or a permit counts if it may be delayed by `delay`: for one window, or in a bucket of
    /// amounts four times as long as the bucket takes to fill up. An amount that is settled later is not returned.
    pub(crate) fn counted_for(&self, delay: Duration) -> Duration {
        let window = self.window().saturating_add(delay);
        if self.is_bucket() && !self.counts_requests() { window.saturating_mul(4) } else { window }
    }

    pub(crate) fn counts_requests(&self) -> bool {
        self.unit == Unit::Requests
    }

    /// Returns what the quota counts.
    pub fn unit(&self) -> Unit {
        self.unit
    }
}
