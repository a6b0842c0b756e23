//! The setters of a limiter.

use std::{num::NonZeroU32, time::Duration};

#[cfg(feature = "quanta")]
use super::shell::driver::Clock;
use super::{core::CoreSettings, local_limiter::LocalLimiter, shell::Setup};
use crate::{
    config::InvalidConfig,
    policy::{nanos, priority::Shares},
};

impl LocalLimiter {
    pub(crate) fn with(self, change: impl FnOnce(&mut CoreSettings)) -> Self {
        self.with_setup(|setup| change(&mut setup.settings))
    }

    pub(super) fn with_setup(self, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::clone(&self.shared.setup);
        change(&mut setup);
        match self.shared.take_source() {
            Some(source) => Self::build_with_source(setup, source),
            None => Self::build(setup),
        }
    }

    /// Uses the clock of the crate `quanta`. Reading it takes a third of the time of reading the operating system's
    /// clock. It ignores tokio's paused time.
    #[cfg(feature = "quanta")]
    pub fn with_quanta_clock(self) -> Self {
        self.with_setup(|setup| setup.clock = Clock::quanta())
    }

    /// Starts with at most `permits` available permits. With 0, a restarted process adds no burst to one that the
    /// previous process may have just sent.
    ///
    /// Has no effect on quotas that do not count requests.
    ///
    /// Default: the quota's burst, or the whole limit of a [sliding window](Self::sliding_window).
    pub fn with_initial_burst(self, permits: u32) -> Self {
        self.with(|settings| settings.initial_burst = Some(permits))
    }

    /// Also limits the requests to the remaining permits that the server's rate-limit headers report. Without this
    /// setting, a limiter with a quota applies them only from a response that rejects requests, such as a 429.
    ///
    /// Use this setting if several processes share a key but no limiter, and if the server's window is a minute or
    /// longer. Servers round resets up to a second, so the setting costs a part of a short quota. The table
    /// shows the used part of the quota in percent, as `ADAPTIVE_CASES=ci cargo test --test limit remaining_permits_cost`
    /// measures it. Without the setting, it is 94 to 98 %.
    ///
    /// | the server, with `X-RateLimit` headers | 100 in 60 s | 100 in 6 s | 20 in 1 s |
    /// |---|---|---|---|
    /// | counts a fixed or a sliding window | 98 | 86 to 92 | 50 to 53 |
    /// | has a token bucket of 100 or 20 | 98 | 94 | 94 |
    /// | spaces requests, with a burst of 5 | 97 | 35 | 30 |
    /// | spaces requests without a burst | 57 | 6 | 5 |
    /// | estimates the rate | 54 | 56 | 58 |
    pub fn with_server_remaining(self) -> Self {
        self.with(|settings| settings.obeys_remaining = true)
    }

    /// Sets the percentage of permits that each lower priority with queued requests gets. Default: 10. With 0, it gets
    /// permits only if no request of a higher priority is queued.
    ///
    /// A builder's own limiter keeps the default. Pass a limiter with another share to
    /// [`StackBuilder::with_limiter`](crate::stack::StackBuilder::with_limiter).
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::{LocalLimiter, PermitRequest, Priority}};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let limiter = LocalLimiter::paced_window(Quota::per_minute(100)?).with_lower_priority_share(5)?;
    /// # use tower_outbound::limit::Limiter;
    /// limiter.acquire_with(&PermitRequest::new().with_priority(Priority::High)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is above 25. At 25, the two lower priorities together get half of the permits.
    pub fn with_lower_priority_share(self, percent: u32) -> Result<Self, InvalidConfig> {
        if percent > Shares::LARGEST {
            let expected = format!("at most {}", Shares::LARGEST);
            return Err(InvalidConfig::new("lower priority share", percent.to_string(), expected));
        }
        Ok(self.with(|settings| settings.lower_share = Some(percent)))
    }

    /// Sets the longest pause. Default: one hour.
    ///
    /// The limiter obeys a requested delay in full up to this limit. If the server requests a longer delay:
    ///
    /// - A call that cannot wait until the requested end fails immediately. The error carries the time until that end.
    /// - A call waits if its deadline and its longest wait reach that end, or if it has neither.
    /// - After each longest pause, the first call that waits or arrives leaves as a probe. Its response ends the delay
    ///   if the server accepts the request, and replaces it if the server states another one.
    ///
    /// The resets of the server's quotas have the same limit. [`pause_until`](Self::pause_until) has none.
    ///
    /// # Errors
    ///
    /// Returns an error if `longest` is zero.
    pub fn with_longest_pause(self, longest: Duration) -> Result<Self, InvalidConfig> {
        let pauses = self.shared.setup.settings.pauses.with_longest(longest)?;
        Ok(self.with(|settings| settings.pauses = pauses))
    }

    /// Sets the first pause after a throttled response, such as a 429, that states neither a delay nor the reset of a
    /// quota without remaining permits. Default: 1 s. With zero, such a response pauses nothing.
    ///
    /// Use this setter for a service that documents a penalty, such as 60 s. Each further such response doubles the
    /// pause, up to five minutes, if its request left after the pause. An accepted request ends the doubling.
    ///
    /// An [adaptive](Self::adaptive) limiter chooses its pauses by default. If this pause is set, none of them is
    /// shorter, except after a 503.
    ///
    /// # Errors
    ///
    /// Returns an error if `pause` is longer than five minutes.
    pub fn with_throttle_pause(self, pause: Duration) -> Result<Self, InvalidConfig> {
        let pauses = self.shared.setup.settings.pauses.with_throttled(pause)?;
        Ok(self.with(|settings| settings.pauses = pauses))
    }

    /// Allows at most `max` requests in flight, besides the limiter's quotas. Use it for a service that limits
    /// concurrent requests. A request is in flight from its grant until its response body has ended, or has been
    /// dropped. Each attempt of a call counts.
    ///
    /// ```
    /// use tower_outbound::{Quota, limit::LocalLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// // 600 requests per minute, and two at a time.
    /// let limiter = LocalLimiter::paced_window(Quota::per_minute(600)?).with_max_in_flight(2)?;
    /// let (first, _second) = (limiter.acquire().await?, limiter.acquire().await?);
    /// assert_eq!(limiter.try_acquire().unwrap_err().max_in_flight(), Some(2));
    /// drop(first);
    /// limiter.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// - Requests beyond the limit are queued, by priority and then first in, first out. A request counts once,
    ///   whatever its cost.
    /// - The end of a request in flight cannot be forecast. If only this limit delays a request, it is refused at its
    ///   longest wait or its deadline, and [`Refusal::wait`](crate::error::Refusal::wait) is `None`. Waiters whose
    ///   bounds pass within 10 ms may be refused together, at the last of these. A longest wait of zero is refused
    ///   immediately.
    /// - A request whose permit [expires](super#expiry) stays in flight while it waits for another permit.
    /// - With [`RateLimitLayer::with_in_flight_until_head`](super::RateLimitLayer::with_in_flight_until_head), the head
    ///   of the response ends the request.
    /// - A limiter with this limit takes its lock for each grant.
    ///
    /// # Errors
    ///
    /// Returns an error if `max` is zero.
    pub fn with_max_in_flight(self, max: u32) -> Result<Self, InvalidConfig> {
        let max = max_in_flight(max)?;
        Ok(self.with(|settings| settings.max_in_flight = Some(max)))
    }

    /// Lets a cancelled request count as [in flight](Self::with_max_in_flight) for `hold` after the cancellation. A
    /// request is cancelled if it was sent and its call is dropped, times out or fails without a response, or if its
    /// response body fails or is dropped before its end. A request that waits for a connection was not sent. Default:
    /// zero.
    ///
    /// The server counts a cancelled request until it notices the cancellation. Some servers process it to its end.
    /// Without a hold, the server can count more requests than the limiter. Has no effect without `with_max_in_flight`.
    /// The [guide](crate::guide::limits#requests-in-flight) suggests a value.
    pub fn with_hold_after_cancel(self, hold: Duration) -> Self {
        self.with(|settings| settings.hold_after_cancel = nanos(hold))
    }
}

pub(crate) fn max_in_flight(max: u32) -> Result<NonZeroU32, InvalidConfig> {
    NonZeroU32::new(max).ok_or_else(|| InvalidConfig::new("max in flight", "0", "at least 1"))
}

#[cfg(test)]
mod tests;
