//! The quota of a server, and the refill interval with which a token bucket enforces the quota in every window.

mod forms;
#[cfg(test)]
mod tests;

use std::{num::NonZeroU32, time::Duration};

use super::{LONGEST, Unit, nanos};
use crate::config::InvalidConfig;

/// The longest time that a burst may take to refill: 146 years, in nanoseconds. A limiter adds this time to its 64-bit
/// clock.
const LONGEST_BURST: u128 = u64::MAX as u128 / 4;

/// The default margin of windows of 16 s and longer. A request that opens a connection may arrive up to about this time
/// later than another request, because of the handshake.
const LARGEST_DEFAULT_MARGIN: Duration = Duration::from_secs(1);

/// Admits at most `limit` requests in **any** window of length `window`, wherever the window starts.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::Quota;
///
/// let quota = Quota::per_minute(100)?;
/// assert_eq!((quota.burst(), quota.margin()), (10, Duration::from_secs(1)));
/// assert_eq!(quota.to_string(), "100 per 60s, burst 10, margin 1s, sustains 1.639 per second");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `burst` requests may be sent back to back. A bucket that holds the whole limit and refills it once per window would
/// admit nearly twice the limit in one window. A [paced window](crate::limit::LocalLimiter::paced_window) delays the
/// requests that would exceed the limit. A [token bucket](crate::limit::LocalLimiter::token_bucket) refills only `limit
/// - burst` requests per `window + margin`. For a server that has a bucket itself, see [`bucket`](Self::bucket).
///
/// # Default
///
/// - Burst: a tenth of the limit, at least 1.
/// - Margin: a sixteenth of the window, at most 1 s.
///
/// # Margin
///
/// The server counts requests when they arrive, and the limiter counts them when it grants their permits. If two
/// requests are granted a window apart and the first is delayed more than the second, both arrive in one window. The
/// margin widens the limiter's window to cover this difference. Four causes share the margin, a quarter each:
///
/// 1. A timer fires late.
/// 2. A task is polled some time after its permits were granted.
/// 3. The inner service is not ready when the permits are granted.
/// 4. The network delays one request more than another.
///
/// The limiter itself limits the second and the third delay, because a permit expires if either delay exceeds a quarter
/// of the margin. The quarter for the network is an assumption. With a window of 1 s, the default margin covers 15 ms
/// of network jitter in the worst case. It covers 62 ms if the first three causes add no delay. Raise the margin for a
/// distant server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The capacity of a bucket.
    limit: u32,
    /// The time in which a bucket refills `refill` requests.
    window: Duration,
    /// `None` unless the quota is a bucket.
    refill: Option<NonZeroU32>,
    burst: u32,
    margin: Duration,
    unit: Unit,
}

/// A function that takes several quotas also takes one.
impl IntoIterator for Quota {
    type Item = Self;
    type IntoIter = std::iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

impl Quota {
    /// Creates a quota of at most `limit` requests in any `window`, with the default burst and margin.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0, or if the window is 0 or longer than 366 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// assert!(Quota::new(1_000, Duration::from_secs(86_400)).is_ok());
    /// assert!(Quota::new(0, Duration::from_secs(1)).is_err());
    /// ```
    pub fn new(limit: u32, window: Duration) -> Result<Self, InvalidConfig> {
        if limit == 0 {
            return Err(InvalidConfig::new("quota limit", "0", "at least 1"));
        }
        if window.is_zero() || window > LONGEST {
            let expected = "more than zero and at most 366 days";
            return Err(InvalidConfig::new("quota window", format!("{window:?}"), expected));
        }
        // These values need no check, because the default burst refills in about a ninth of the window.
        Ok(Self {
            limit,
            window,
            refill: None,
            burst: (limit / 10).max(1),
            margin: LARGEST_DEFAULT_MARGIN.min(window / 16),
            unit: Unit::Requests,
        })
    }

    /// Creates a quota of at most `limit` requests in any second.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0.
    ///
    /// ```
    /// use tower_outbound::Quota;
    ///
    /// assert_eq!(format!("{:#}", Quota::per_second(5)?), "5/1s, burst 1, margin 62500us");
    /// assert_eq!(format!("{:#}", Quota::per_minute(100)?), "100/60s, burst 10, margin 1s");
    /// assert_eq!(format!("{:#}", Quota::per_hour(5_000)?), "5000/3600s, burst 500, margin 1s");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_second(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Creates a quota of at most `limit` requests in any minute.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0.
    pub fn per_minute(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(60))
    }

    /// Creates a quota of at most `limit` requests in any hour.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is 0.
    pub fn per_hour(limit: u32) -> Result<Self, InvalidConfig> {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// Sets how many requests may be sent back to back. A larger burst lowers the sustained rate of a
    /// [token bucket](crate::limit::LocalLimiter::token_bucket). A paced window refills its burst at the rate of the full
    /// limit. [`bucket`](Self::bucket) describes the bucket of a server.
    ///
    /// # Errors
    ///
    /// Returns an error if the burst
    ///
    /// - is 0 or above the limit;
    /// - is set on a [bucket](Self::bucket), whose capacity and margin determine its burst;
    /// - equals the limit, unless both are 1, because no permits would remain for the refill;
    /// - takes more than 146 years to refill.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// let quota = Quota::per_minute(100)?.with_burst(40)?.without_margin();
    /// assert_eq!(quota.refill_interval(), Duration::from_secs(1)); // 60 s / (100 - 40)
    ///
    /// assert!(Quota::per_minute(100)?.with_burst(100).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_burst(mut self, burst: u32) -> Result<Self, InvalidConfig> {
        if self.refill.is_some() {
            let expected = "no burst for a bucket: its capacity and margin determine it";
            return Err(InvalidConfig::new("quota burst", burst.to_string(), expected));
        }
        let most = (self.limit - 1).max(1);
        if burst == 0 || burst > most {
            let expected = if burst == self.limit {
                format!("at most {most}: a burst equal to the limit leaves no permits to refill")
            } else {
                format!("1 to {most}")
            };
            return Err(InvalidConfig::new("quota burst", burst.to_string(), expected));
        }
        self.burst = burst;
        self.checked("quota burst", burst.to_string())
    }

    /// Sets the safety margin, by which the limiter's window is longer than the server's window. See [Margin](#margin).
    ///
    /// A suitable margin is four times the largest difference in network delay between two requests, including a
    /// connection's handshake. With a margin below 100 ms, permits expire after less than 25 ms, so a busy runtime
    /// wastes some of them.
    ///
    /// # Errors
    ///
    /// Returns an error if the margin is longer than the window, or if the burst would take more than 146 years to
    /// refill.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::Quota;
    ///
    /// let quota = Quota::per_second(2)?.with_margin(Duration::from_millis(200))?;
    /// assert_eq!(quota.refill_interval(), Duration::from_millis(1_200));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_margin(mut self, margin: Duration) -> Result<Self, InvalidConfig> {
        if margin > self.window() {
            let what =
                if self.refill.is_some() { "the time in which the bucket fills up" } else { "the window" };
            let expected = format!("at most {:?} ({what})", self.window());
            return Err(InvalidConfig::new("quota margin", format!("{margin:?}"), expected));
        }
        if self.refill.is_some() {
            return Ok(self.with_bucket_margin(margin));
        }
        self.margin = margin;
        self.checked("quota margin", format!("{margin:?}"))
    }

    /// Sets the safety margin to zero. Use it for a server in the same process, or to compare rates.
    ///
    /// # Notes
    ///
    /// - A delayed request can exceed the server's limit, because no margin covers its delay.
    /// - A permit expires if its task is not polled within 1/32 of the window, or within 50 ms if that is shorter.
    ///   After this poll, the permit expires if the inner service does not become ready within the same time.
    /// - A server that measures its window in whole milliseconds can see more than `limit` requests in a window.
    pub fn without_margin(mut self) -> Self {
        self.margin = Duration::ZERO;
        if self.refill.is_some() { self.with_bucket_margin(Duration::ZERO) } else { self }
    }

    /// Returns the maximum number of requests, or of the [unit](Self::unit), in any window, or the capacity of a [bucket](Self::bucket).
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the window of the limit, without the margin, or the time in which a [bucket](Self::bucket) fills up.
    pub fn window(&self) -> Duration {
        match self.refill {
            None => self.window,
            Some(_) => Duration::from_nanos(self.server_interval().saturating_mul(self.limit.into())),
        }
    }

    /// Returns the maximum number of requests that may be sent back to back.
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// Returns the safety margin. Zero after [`without_margin`](Self::without_margin).
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// Returns the time that a token bucket takes to refill one request, or one of the [unit](Self::unit).
    ///
    /// The interval is `(window + margin) / (limit - burst)`, rounded up to the nanosecond. For a limit of 1, the
    /// interval is 1 ns more than `window + margin`. A bucket of [`burst`](Self::burst) requests with this interval
    /// admits at most [`limit`](Self::limit) requests in any closed window of `window + margin`. The
    /// interval of a [bucket](Self::bucket) is the server's, plus the part of the margin that the burst does not cover.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_outbound::Quota;
    /// let quota = Quota::per_minute(100)?.without_margin();
    /// assert_eq!(quota.refill_interval(), Duration::from_nanos(666_666_667));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refill_interval(&self) -> Duration {
        if self.refill.is_some() {
            let interval = self.server_interval();
            // The part of the margin that the burst does not cover.
            let covered = interval.saturating_mul((self.limit - self.burst).into());
            return Duration::from_nanos(interval.saturating_add(nanos(self.margin).saturating_sub(covered)));
        }
        // The sum is at most 732 days, which fits into 64 bits of nanoseconds.
        let length = nanos(self.window).saturating_add(nanos(self.margin));
        let interval = match self.limit - self.burst {
            0 => length.saturating_add(1),
            refilled => length.div_ceil(u64::from(refilled)),
        };
        Duration::from_nanos(interval)
    }

    /// Returns the number of requests, or of the unit, per second that the quota sustains: `limit / (window + margin)`.
    /// A [bucket](Self::bucket) sustains one request per [`refill_interval`](Self::refill_interval).
    ///
    /// A [token bucket](crate::limit::LocalLimiter::token_bucket) sustains one request per
    /// [`refill_interval`](Self::refill_interval).
    ///
    /// ```
    /// # use tower_outbound::Quota;
    /// assert!((Quota::per_minute(100)?.sustained() - 100.0 / 61.0).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sustained(&self) -> f64 {
        if self.refill.is_some() {
            return 1.0 / self.refill_interval().as_secs_f64();
        }
        f64::from(self.limit) / self.window.saturating_add(self.margin).as_secs_f64()
    }

    /// Returns an error if the quota could overflow a limiter's 64-bit clock. The error names `field`, the setting that
    /// was changed last.
    fn checked(self, field: &'static str, value: String) -> Result<Self, InvalidConfig> {
        if self.refill_interval().as_nanos() * u128::from(self.burst) <= LONGEST_BURST {
            return Ok(self);
        }
        Err(InvalidConfig::new(field, value, "a burst that refills within 146 years"))
    }
}
