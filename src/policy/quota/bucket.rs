//! Quotas that describe the bucket of a server.

use std::{num::NonZeroU32, time::Duration};

use super::{LARGEST_DEFAULT_MARGIN, Quota};
use crate::{
    config::InvalidConfig,
    policy::{LONGEST, nanos},
};

impl Quota {
    /// Creates the quota of a server that has a bucket of `capacity` requests, or of another [unit](Self::with_unit),
    /// and refills `refill` of them in each `per`. Shopify's "40, leaks 2 per second" is such a bucket, and so is
    /// "1,000 points, restores 50 per second" of its GraphQL API.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Quota, limit::Unit};
    ///
    /// let shop = Quota::bucket(40, 2, Duration::from_secs(1))?;
    /// assert_eq!((shop.burst(), shop.refill_interval()), (38, Duration::from_millis(500)));
    /// assert_eq!(format!("{shop:#}"), "bucket 40, 2/1s, margin 1s");
    /// assert_eq!("bucket 40, 2/1s".parse::<Quota>()?, shop);
    ///
    /// let graph = Quota::bucket(1_000, 50, Duration::from_secs(1))?.with_unit(Unit::Points)?;
    /// assert_eq!(format!("{graph:#}"), "bucket 1000 points, 50/1s, margin 1s");
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// - Any time of length `t` contains at most `capacity + refill × t / per` requests. A window therefore has no fixed
    ///   limit: a minute of this shop contains up to 160 requests after an idle time, and 120 otherwise.
    /// - Every `LocalLimiter` applies it as a [token bucket](crate::limit::LocalLimiter::token_bucket), including a paced or
    ///   sliding window, alone or together with other quotas. So does a `RedisLimiter`.
    /// - The [margin](#margin) lowers the burst, and not the rate. If the capacity is too small for that, the burst is 1,
    ///   and the rest of the margin extends the interval.
    /// - The default margin is a sixteenth of the time in which the bucket fills up, at most 1 s.
    /// - The time between two refilled permits is rounded up to the nanosecond. This lowers the rate by less than 1 %,
    ///   unless the bucket refills more than ten million per second.
    ///
    /// # Tokens, points and other units
    ///
    /// The amounts of a unit are [settled](crate::limit::Settlement#guarantee) as in a window, with these differences:
    ///
    /// - A request whose estimate is above the burst is sent after the bucket was full for some time, at most the
    ///   margin. An estimate above the capacity counts as the capacity, and so does an actual amount equal to it.
    /// - The bucket refills each other actual amount, even above the capacity. An amount counts as at most ten times
    ///   the capacity, so that a wrong amount does not stop the limiter for long.
    /// - After a smaller actual amount, the bucket contains what it would contain if the request had taken only that
    ///   amount, or up to 0.5 % of the capacity less. What a full bucket could not have held is not returned.
    /// - Nothing is returned after four times the time in which the bucket fills up.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity or the refill is 0, if `per` is 0 or longer than 366 days, or if the bucket takes
    /// longer than 366 days to fill up.
    pub fn bucket(capacity: u32, refill: u32, per: Duration) -> Result<Self, InvalidConfig> {
        let quota = Self::new(capacity, per)?;
        let Some(refill) = NonZeroU32::new(refill) else {
            return Err(InvalidConfig::new("quota refill", "0", "at least 1"));
        };
        let quota = Self { refill: Some(refill), ..quota };
        let fill = quota.window();
        if fill > LONGEST {
            let expected = "a bucket that fills up within 366 days";
            return Err(InvalidConfig::new("quota limit", capacity.to_string(), expected));
        }
        Ok(quota.with_bucket_margin(LARGEST_DEFAULT_MARGIN.min(fill / 16)))
    }

    /// Sets the margin of a bucket, and its burst.
    pub(crate) fn with_bucket_margin(self, margin: Duration) -> Self {
        let kept = nanos(margin).div_ceil(self.server_interval());
        let burst = u64::from(self.limit).saturating_sub(kept).max(1);
        Self { burst: u32::try_from(burst).unwrap_or(self.limit), margin, ..self }
    }

    /// Returns the nanoseconds in which the server's bucket refills one request.
    pub(super) fn server_interval(&self) -> u64 {
        nanos(self.window).div_ceil(self.refill.map_or(1, NonZeroU32::get).into())
    }

    /// Returns how many requests a [bucket](Self::bucket) refills, and in which time. Returns `None` for a quota with a
    /// window.
    pub fn refill(&self) -> Option<(u32, Duration)> {
        self.refill.map(|refill| (refill.get(), self.window))
    }
}
