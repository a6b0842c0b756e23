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

    /// Sets the prefix of the keys in Redis. Like every setter, this method returns an independent limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the namespace is empty or contains a brace. Braces mark the part of a key that selects the
    /// slot in a cluster.
    pub fn with_namespace(self, namespace: &str) -> Result<Self, InvalidConfig> {
        if namespace.is_empty() || namespace.contains(['{', '}']) {
            return Err(InvalidConfig::new("namespace", namespace.to_owned(), "a name without braces"));
        }
        Ok(self.with(|settings| settings.namespace = namespace.to_owned()))
    }

    /// Fetches up to `permits` permits with one query, before requests need them. Each fetched permit expires `hold`
    /// after its start time. Fetches fewer permits if some of the previous permits were not used. Default: `permits` is
    /// 1, and `hold` is 1/50 of the shortest window, but at least 5 ms and at most 250 ms.
    ///
    /// If the round trip to the server takes longer than `hold`, the permits expire before they arrive. The third
    /// consecutive late reply is treated as a failure of the server.
    ///
    /// With a lease, a busy process sends one query for many requests. The cost is a window that is longer by `hold`.
    /// For a quota of 100 per minute, a `hold` of 1 s costs 1.6 % of the rate. For 200 per second, a `hold` of 100 ms
    /// costs 9 %. Other processes cannot use a permit that this process holds.
    ///
    /// # Errors
    ///
    /// Returns an error if `permits` is 0 or more than 1,000, which is the maximum of one query. Also returns an error
    /// if `hold` is zero or longer than the shortest window.
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
            let expected = format!("more than zero and at most {shortest:?} (the shortest window)");
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

    /// Sets the longest pause. Default: one hour. See
    /// [`LocalLimiter::with_longest_pause`](crate::limit::LocalLimiter::with_longest_pause).
    ///
    /// A process that did not receive the requested delay itself only learns the end of the longest pause. After that,
    /// it sends requests at the quota's rate until one of them is throttled.
    ///
    /// # Errors
    ///
    /// Returns an error if `longest` is zero.
    pub fn with_longest_pause(self, longest: Duration) -> Result<Self, InvalidConfig> {
        let pauses = self.inner.settings.pauses.with_longest(longest)?;
        Ok(self.with(|settings| settings.pauses = pauses))
    }

    /// Sets the first pause after a throttled response without a delay. Default: 1 s. See
    /// [`LocalLimiter::with_throttle_pause`](crate::limit::LocalLimiter::with_throttle_pause).
    ///
    /// # Errors
    ///
    /// Returns an error if `pause` is longer than five minutes.
    pub fn with_throttle_pause(self, pause: Duration) -> Result<Self, InvalidConfig> {
        let pauses = self.inner.settings.pauses.with_throttled(pause)?;
        Ok(self.with(|settings| settings.pauses = pauses))
    }

    /// Lets this process use its share of each quota while the server does not reply. A share is the quota divided by
    /// `processes`. By default, no share is used. While the server does not reply, every request is then refused
    /// immediately with [`Reason::Unavailable`](crate::error::Reason::Unavailable).
    ///
    /// When a process starts to use its share, the share has no permit yet, because the latest requests of the other
    /// processes are unknown.
    ///
    /// # Errors
    ///
    /// Returns an error if `processes` is 0, or if the share of a process would be less than one permit. This is the
    /// case if `processes` exceeds the limit of a quota or the burst of a token bucket.
    pub fn with_fallback_share(self, processes: u32) -> Result<Self, InvalidConfig> {
        let Settings { kind, quotas, .. } = &*self.inner.settings;
        let share = parts(processes, *kind, quotas)?;
        Ok(self.with(|settings| settings.share = Some(share)))
    }
}
