//! The constructors of [`LocalLimiter`], one for each rule.

use super::{
    core::{PermitSource, Rule},
    local_limiter::LocalLimiter,
    shell::Setup,
};
#[cfg(doc)]
use crate::limit::{Keyed, Snapshot};
use crate::policy::Quota;

impl LocalLimiter {
    /// Creates a paced window. It grants the whole quota, spread over the window: first the burst at once, then permits
    /// at even intervals. No window contains more permits than the limit. [`StackBuilder`](crate::stack::StackBuilder)
    /// and the presets use a paced window if each limit is at most 10,000 requests.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Quota, limit::LocalLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let window = LocalLimiter::paced_window(Quota::per_minute(100)?);
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..100 {
    ///     window.acquire().await?;
    /// }
    /// // 10 permits at once, then 90 in 54.9 s.
    /// assert_eq!(start.elapsed().as_secs(), 54);
    /// window.acquire().await?;
    /// // The window and the margin of 1 s have passed since the first grant.
    /// assert!(start.elapsed() >= Duration::from_secs(61));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A paced window consists of a token bucket, which refills the whole limit once per window and margin, and a log
    /// of the grants of the last window. The log delays a grant that would exceed the limit. A delayed grant leaves the
    /// bucket empty. A burst is therefore followed by one gap as long as the refill of the burst, and not by another
    /// burst in each window. The sustained rate is `limit / (window + margin)`.
    ///
    /// # Memory
    ///
    /// The log takes 16 bytes for each permit of the limit, 160 KB for 10,000 permits. Use a [token
    /// bucket](Self::token_bucket), which has no log, if the limit is higher.
    pub fn paced_window(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(Setup::new(quotas.into_iter().collect(), Rule::PacedWindow))
    }

    /// Creates a token bucket. It spreads requests over the window: grants the burst at once, then one permit every
    /// [`Quota::refill_interval`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Quota, limit::LocalLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let bucket = LocalLimiter::token_bucket(Quota::per_minute(100)?);
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..100 {
    ///     bucket.acquire().await?;
    /// }
    /// // 10 permits at once, then 90 in 61 s: a minute and the margin of 1 s.
    /// assert!(start.elapsed() >= Duration::from_secs(61));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The burst counts toward the quota, so permits refill more slowly than the quota allows. A quota of 100 per
    /// minute with a burst of 10 grants 10 permits at once, and then 90 every 61 s. The 61 s are the minute and the
    /// default margin of 1 s. [`Quota::refill_interval`] returns the time between two refilled permits. A [paced
    /// window](Self::paced_window) grants the whole quota. A quota of a [unit](crate::limit::Unit) other than requests
    /// is counted as in a paced window, unless it is a [bucket](Quota::bucket).
    ///
    /// # Notes
    ///
    /// tokio's timers have a resolution of 1 ms, and a full bucket loses permits while a timer is late. The bucket
    /// therefore backdates a waiter's grant to the time at which the permits became available, by at most a quarter of
    /// the quota's margin. With a margin of at least 8 ms, it keeps at least 99 % of its rate with any burst. Without a
    /// margin, use a burst of one request's cost plus the refill of 2 ms. This is a burst of 21 at 10,000 per second,
    /// and of 2 at 300 per second. No window exceeds the quota in either case.
    pub fn token_bucket(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(Setup::new(quotas.into_iter().collect(), Rule::TokenBucket))
    }

    /// Creates a sliding window. It grants the whole quota in any pattern. A permit becomes available again when its
    /// grant leaves the window.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Quota, limit::LocalLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let window = LocalLimiter::sliding_window(Quota::per_minute(100)?);
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..100 {
    ///     window.acquire().await?;
    /// }
    /// assert!(start.elapsed().is_zero());
    /// window.acquire().await?;
    /// assert!(start.elapsed() >= Duration::from_secs(61));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Use a sliding window for a server that is known to count a sliding window and to accept the whole quota at once.
    /// The quota's burst has no effect. The sustained rate is `limit / (window + margin)`.
    ///
    /// # Memory
    ///
    /// The log of grants has entries of 16 bytes. Permits that were granted at the same time share an entry. The log
    /// has at most as many entries as the limit has permits. Above 4,096 entries it keeps only the grants of the last
    /// window.
    pub fn sliding_window(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(Setup::new(quotas.into_iter().collect(), Rule::SlidingWindow))
    }

    /// Creates a limiter that learns the rate that the server accepts, from its rate-limit headers and from throttled
    /// responses such as a 429. Use it for a service whose quota is unknown or varies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::Request;
    /// use tower::{Layer, ServiceExt};
    /// use tower_outbound::{
    ///     Body,
    ///     limit::{LocalLimiter, RateLimitLayer},
    ///     test_util::{ScriptedService, ServerLimit},
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// // A server with 100 requests per minute, which sends no rate-limit headers.
    /// let server = ServerLimit::sliding_window(100, Duration::from_secs(60));
    /// let limit = server.clone();
    /// let api = ScriptedService::from_fn(move |_| limit.respond());
    /// let limiter = LocalLimiter::adaptive([]);
    /// let service = RateLimitLayer::new(limiter.clone()).layer(api);
    /// for _ in 0..1_000 {
    ///     service.clone().oneshot(Request::new(Body::empty())).await?;
    /// }
    /// let learned = limiter.snapshot().learned.ok_or("nothing learned")?;
    /// assert!((1.0..2.5).contains(&learned.rate()), "{learned:?}");
    /// assert!(server.rejected() < 50);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// - The quotas are the ceiling of the learned rate. No window exceeds them. The limiter ignores rate-limit headers
    ///   until the first throttled response.
    /// - Without a quota, the limiter begins with a slow start: ten requests leave at once, and the total doubles every
    ///   100 ms. The slow start begins again after 2 s without a request.
    /// - Rate-limit headers with a limit, and with a window or a reset, set the rate to 98 % of that quota. A quota
    ///   whose window is longer than two minutes, or that belongs to one resource beside another quota, does not set
    ///   the rate.
    /// - A throttled response pauses all callers for the requested delay or until the reset of a quota without
    ///   remaining permits, whichever ends later, for at most the [longest pause](Self::with_longest_pause). Without
    ///   either, the first pause lasts one round trip, but at least the time between two requests, or 100 ms if no rate
    ///   is known, and at least the [throttle pause](Self::with_throttle_pause) if it is set.
    /// - One request after the pause tests whether the server accepts requests again. Each test that is throttled
    ///   doubles the wait up to a minute, and then increases it by a quarter, up to 15 minutes.
    /// - The first pause sets the rate to the recently accepted requests per second if no rate is known. The rate stays
    ///   unknown if fewer than 10 requests were accepted.
    /// - Each further pause lowers the rate by 30 %, or only to 98 % of the last rate that had a complete window
    ///   without a throttled response, or to the reported quota.
    /// - The rate rises after a complete window without a throttled response, if the requests used at least 80 % of it.
    ///   It doubles until a throttled response lowers it, then rises by 2 %, 6 %, 18 % and 50 %. After a pause of more
    ///   than a minute, it rises by a quarter instead of doubling. A raise that the requests do not use is taken back.
    /// - After a raise that was throttled, the next one waits for 20 times the pause.
    ///
    /// A 503 can come from a server that throttles, such as nginx, or from an outage. Unless its headers report a quota
    /// without remaining permits, the pause then doubles only up to 5 s, or up to the time between two requests if that
    /// is longer. The limiter assumes an outage after six cuts by such responses without a complete window between
    /// them, or after six failed tests in one pause. It then restores the rate, and obeys only requested delays of such
    /// responses for 60 s. If no rate is known, the first such pause in 60 s sets none. The retry layer's backoff
    /// applies in any case.
    ///
    /// [`guide::adaptive_limits`](crate::guide::adaptive_limits) shows how much of a quota is used with each kind of
    /// server.
    ///
    /// # Tokens and other units
    ///
    /// The limiter also learns the rate of each unit that responses report, such as OpenAI's tokens, if the requests
    /// have [amounts](super::Amounts) of the unit. Only the amounts of accepted requests raise the rate.
    ///
    /// - A quota of the unit is the ceiling of its rate, and makes the limiter ignore the headers of the unit until the
    ///   first rejection because of it.
    /// - The unit caused a rejection if its quota has less than the request takes, or less than a twentieth of its
    ///   limit, and each reported quota of requests has permits left. The rate of requests then stays. Any other
    ///   rejection, such as a 429 without headers or because of a unit without amounts, lowers the rate of requests.
    /// - The pause after a rejection delays all requests. The probe after it delays only requests with an amount of the
    ///   unit.
    /// - A request waits until the amounts before it are refilled, but not for its own amount. An amount above the
    ///   server's limit counts as the limit. Settled amounts replace the estimates.
    /// - The rates are in [`Snapshot::learned_units`], and not in log events.
    ///
    /// # Notes
    ///
    /// - [`Snapshot::learned`] contains the learned rate. The layer logs each change at DEBUG as
    ///   `limiter learned another rate`, and sets the gauge `tower_outbound.limit.learned_rate`.
    /// - If other processes use the same key, the limiter learns the share of the quota that they leave.
    /// - [`Keyed`](super::Keyed) discards an idle limiter and its learned rate.
    pub fn adaptive(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self::build(Setup::new(quotas.into_iter().collect(), Rule::Learned))
    }

    /// Creates a limiter without a quota. The limits that the server reports apply, such as remaining permits and
    /// `Retry-After`. [`with_max_in_flight`](Self::with_max_in_flight) can limit the requests in flight.
    pub fn without_quota() -> Self {
        Self::paced_window([])
    }

    /// Creates a limiter whose permits come from `source`, such as a store that several processes share: see
    /// [`PermitSource`]. The margins and windows of `quotas` determine how long a permit stays valid, and their units
    /// which amounts the limiter passes to the source.
    pub fn from_source(source: impl PermitSource + 'static, quotas: impl IntoIterator<Item = Quota>) -> Self {
        let setup = Setup::new(quotas.into_iter().collect(), Rule::TokenBucket);
        Self::build_with_source(setup, Box::new(source))
    }
}
