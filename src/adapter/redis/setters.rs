//! The setters of a limiter. Each returns a new limiter.

use std::time::Duration;

use super::{
    fallback::parts,
    limiter::RedisLimiter,
    protocol::MAX_PERMITS,
    settings::{Settings, require},
};
use crate::{config::InvalidConfig, limit::max_in_flight};

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
    /// Returns an error if `permits` is 0 or more than 1,000, which is the maximum of one query. With a quota that
    /// counts a [unit](crate::Quota::with_unit) other than requests, the maximum is 1. Also returns an error if `hold`
    /// is zero or longer than the shortest window.
    pub fn with_lease(self, permits: u32, hold: Duration) -> Result<Self, InvalidConfig> {
        let field = "lease permits";
        require((1..=MAX_PERMITS).contains(&permits), field, permits, format!("1 to {MAX_PERMITS}"))?;
        let expected = "1, because a quota counts a unit other than requests";
        require(permits == 1 || !self.inner.settings.has_units(), field, permits, expected)?;
        let shortest = self.inner.settings.shortest();
        let expected = format!("more than zero and at most {shortest:?} (the shortest window)");
        require(!hold.is_zero() && hold <= shortest, "hold", hold, expected)?;
        Ok(self.with(|settings| (settings.lease, settings.hold) = (permits, hold)))
    }

    /// Limits the time of a query, including connecting. Default: 250 ms.
    ///
    /// # Errors
    ///
    /// Returns an error if the timeout is zero or longer than an hour.
    pub fn with_timeout(self, timeout: Duration) -> Result<Self, InvalidConfig> {
        let is_valid = !timeout.is_zero() && timeout <= Duration::from_secs(3_600);
        require(is_valid, "timeout", timeout, "more than zero and at most 1h")?;
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
    /// case if `processes` exceeds the limit of a quota or the burst of a token bucket. The limit applies to a quota of
    /// another unit.
    pub fn with_fallback_share(self, processes: u32) -> Result<Self, InvalidConfig> {
        let Settings { rule, quotas, max_in_flight, .. } = &*self.inner.settings;
        let share = parts(processes, *rule, quotas)?;
        if let Some(max) = max_in_flight {
            let expected = format!("1 to {max}, because of the limit of requests in flight");
            require(processes <= max.get(), "processes", processes, expected)?;
        }
        Ok(self.with(|settings| (settings.share, settings.processes) = (Some(share), processes)))
    }

    /// Allows at most `max` requests in flight in all processes together. Default: no limit. A request is in flight as
    /// with [`LocalLimiter::with_max_in_flight`](crate::limit::LocalLimiter::with_max_in_flight): from its grant until
    /// its response body has ended, or has been dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Quota, adapter::RedisLimiter};
    ///
    /// // 600 requests per minute, and five at a time, in all processes together.
    /// let limiter = RedisLimiter::token_bucket("redis://localhost", "sk_live", Quota::per_minute(600)?)?
    ///     .with_max_in_flight(5)?
    ///     // The requests of a crashed process count for up to 5 s.
    ///     .with_in_flight_expiry(Duration::from_secs(5))?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// - A process reports each end of a request to the store. This adds up to one query for each request.
    /// - If the limit is reached, a process with waiters queries again after an eighth of the time that it has waited,
    ///   but after at least 10 ms and at most 250 ms. The end of one of its own requests triggers a query immediately.
    /// - Processes take turns: when a request ends, the store admits a request of the process that has waited longest.
    ///   A process that waits but sends no query for 1 s loses its turn.
    /// - Permits that a [lease](Self::with_lease) fetches before requests need them count as requests in flight until
    ///   they expire.
    /// - The end of a request cannot be forecast. A waiter that only this limit delays is refused at its deadline, or
    ///   one [timeout](Self::with_timeout), 250 ms by default, after its `max_wait`.
    /// - With a [fallback share](Self::with_fallback_share), each process may have `max / processes` requests in flight
    ///   while the store does not reply. Requests from before the failure count too.
    /// - After a restart or a detected loss of the store's memory, no further request is admitted until the
    ///   [expiry](Self::with_in_flight_expiry), because the store does not know the requests in flight. The same
    ///   applies to a server that has just started.
    /// - [`Snapshot::requests_in_flight`](crate::limit::Snapshot::requests_in_flight) counts those of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if `max` is zero, or less than the processes of
    /// [`with_fallback_share`](Self::with_fallback_share).
    pub fn with_max_in_flight(self, max: u32) -> Result<Self, InvalidConfig> {
        let max = max_in_flight(max)?;
        let processes = self.inner.settings.processes;
        let expected = format!("at least {processes}, the number of processes with a fallback share");
        require(max.get() >= processes, "max in flight", max, expected)?;
        Ok(self.with(|settings| settings.max_in_flight = Some(max)))
    }

    /// Sets how long the [requests in flight](Self::with_max_in_flight) of a process count in the store after its last
    /// query. Default: 10 s.
    ///
    /// - A process with requests in flight sends a query after each third of this time, so a long stream stays counted.
    /// - The requests of a process that has crashed count for up to this time.
    /// - Processes may use different times. Each time applies to the requests of its process. After a loss of the
    ///   store's memory, the time of the process that detects it applies.
    /// - If a process cannot reach the store for this time, its requests no longer count, although they may still be in
    ///   flight. The same applies to a process that is suspended.
    /// - The queries are sent by a task of the tokio runtime in which a request first waited. If this runtime shuts
    ///   down, the next request in another runtime starts another task.
    ///
    /// # Errors
    ///
    /// Returns an error if the time is shorter than a second or longer than an hour.
    pub fn with_in_flight_expiry(self, expiry: Duration) -> Result<Self, InvalidConfig> {
        let range = Duration::from_secs(1)..=Duration::from_secs(3_600);
        require(range.contains(&expiry), "in flight expiry", expiry, "1s to 1h")?;
        Ok(self.with(|settings| settings.in_flight_expiry = expiry))
    }
}
