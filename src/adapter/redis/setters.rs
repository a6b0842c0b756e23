//! The setters of a limiter. Each returns a new limiter.

use std::time::Duration;

use super::{fallback::parts, limiter::RedisLimiter, protocol::MAX_PERMITS, settings::Settings};
use crate::config::InvalidConfig;

impl RedisLimiter {
    fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::clone(&self.inner.settings);
        change(&mut settings);
        Self::build(settings)
    }

    /// Sets the prefix of the keys. Like every setter, it returns an independent limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the namespace is empty or contains a brace. Braces mark the part that selects the slot of a
    /// cluster.
    pub fn with_namespace(self, namespace: &str) -> Result<Self, InvalidConfig> {
        if namespace.is_empty() || namespace.contains(['{', '}']) {
            return Err(InvalidConfig::new("namespace", namespace.to_owned(), "a name without braces"));
        }
        Ok(self.with(|settings| settings.namespace = namespace.to_owned()))
    }

    /// Fetches up to `permits` permits with one query before requests need them, and holds each for up to `hold` after
    /// its moment. Fetches fewer if the previous ones were not all used. Unused permits expire. Default: 1 permit, and
    /// a fiftieth of the shortest window, at least 5 ms and at most 250 ms.
    ///
    /// If the round trip to the server takes longer than `hold`, no permit is granted in time. This counts as a
    /// failure.
    ///
    /// With a lease, a busy process sends one query for many requests, but every window is longer by `hold`: 1 s costs
    /// 1.6 % of 100 per minute, and 100 ms costs 9 % of 200 per second. Other processes cannot use a held permit.
    ///
    /// # Errors
    ///
    /// Returns an error if `permits` is 0 or more than 1,000, the maximum of one query, or if `hold` is zero or longer
    /// than the shortest window.
    pub fn with_lease(self, permits: u32, hold: Duration) -> Result<Self, InvalidConfig> {
        if !(1..=MAX_PERMITS).contains(&permits) {
            return Err(InvalidConfig::new(
                "lease permits",
                permits.to_string(),
                format!("1 to {MAX_PERMITS}"),
            ));
        }
        let shortest = self.inner.settings.shortest();
        if hold.is_zero() || hold > shortest {
            let expected = format!("more than zero and at most the shortest window, {shortest:?}");
            return Err(InvalidConfig::new("hold", format!("{hold:?}"), expected));
        }
        Ok(self.with(|settings| (settings.lease, settings.hold) = (permits, hold)))
    }

    /// Limits the time of a query, including connecting. Default: 250 ms.
    ///
    /// # Errors
    ///
    /// Returns an error if the timeout is zero.
    pub fn with_timeout(self, timeout: Duration) -> Result<Self, InvalidConfig> {
        if timeout.is_zero() {
            return Err(InvalidConfig::new("timeout", "0ns", "more than zero"));
        }
        Ok(self.with(|settings| settings.timeout = timeout))
    }

    /// Lets this process use its share of each quota, one of `processes` parts, while the server does not reply. By
    /// default, every request is then refused immediately with
    /// [`Reason::Unavailable`](crate::error::Reason::Unavailable).
    ///
    /// At first nothing of the share is available, because the latest requests of the other processes are unknown.
    ///
    /// # Errors
    ///
    /// Returns an error if `processes` is 0, or exceeds the limit of a quota or the burst of a token bucket, so that a
    /// process would have less than one permit.
    pub fn with_fallback_share(self, processes: u32) -> Result<Self, InvalidConfig> {
        let Settings { kind, quotas, .. } = &*self.inner.settings;
        let share = parts(processes, *kind, quotas)?;
        Ok(self.with(|settings| settings.share = Some(share)))
    }
}
