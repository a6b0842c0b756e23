//! The forms of a quota: a bucket, a unit other than requests, and text such as `100/60s, burst 10, margin 1s` or
//! `bucket 40, 2/1s, margin 1s`. A unit follows the limit.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use super::{LARGEST_DEFAULT_MARGIN, Quota};
use crate::{
    config::InvalidConfig,
    policy::{
        LONGEST, Unit,
        header_values::whole_number,
        nanos,
        text::{DurationText, parse_duration},
    },
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

/// `{}` formats the quota for people: `100 per 60s, burst 10, margin 1s, sustains 1.639 per second`. `{:#}` formats it
/// for configuration files: `100/60s, burst 10, margin 1s`. Parsing the second form returns an equal quota. A bucket is
/// `bucket 40, 2 per 1s, burst 38, margin 1s, sustains 2 per second` or `bucket 40, 2/1s, margin 1s`. A unit other than
/// requests follows the limit or the capacity: `30000 tokens/60s` or `bucket 1000 points, 50/1s`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, window, refill, burst, margin, unit } = *self;
        let (per, window, margin) =
            (if f.alternate() { "/" } else { " per " }, DurationText(window), DurationText(margin));
        f.write_str(if refill.is_some() { "bucket " } else { "" })?;
        write!(f, "{limit}")?;
        if unit != Unit::Requests {
            write!(f, " {unit}")?;
        }
        if let Some(refill) = refill {
            write!(f, ", {refill}")?;
        }
        write!(f, "{per}{window}")?;
        // The text of a bucket in a file has no burst.
        if refill.is_none() || !f.alternate() {
            write!(f, ", burst {burst}")?;
        }
        write!(f, ", margin {margin}")?;
        if f.alternate() {
            return Ok(());
        }
        write!(f, ", sustains {} per second", Rounded(self.sustained()))
    }
}

/// Formats a positive number with four significant digits, without trailing zeros.
struct Rounded(f64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = (3.0 - self.0.log10().floor()).max(0.0) as usize;
        let digits = format!("{:.decimals$}", self.0);
        f.write_str(if decimals > 0 { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits })
    }
}

/// Returns the unit with this name.
fn known_unit(name: &str) -> Result<Unit, InvalidConfig> {
    let known = Unit::NAMES.iter().find(|(_, known)| *known == name).map(|(unit, _)| *unit);
    known.ok_or_else(|| {
        let expected = "requests, tokens, input_tokens, output_tokens, points or bytes";
        InvalidConfig::new("unit", name.escape_debug().to_string(), expected)
    })
}

/// Parses a quota in the form that `{:#}` writes: `LIMIT/WINDOW` or `LIMIT UNIT/WINDOW`, then optionally a burst and a
/// margin. A bucket is `bucket CAPACITY, REFILL/TIME` or `bucket CAPACITY UNIT, REFILL/TIME`, and optionally a margin.
///
/// ```
/// use tower_outbound::Quota;
///
/// let quota: Quota = "100/60s, burst 20, margin 2s".parse()?;
/// assert_eq!(format!("{quota:#}"), "100/60s, burst 20, margin 2s");
/// assert_eq!("100/1m".parse::<Quota>()?, Quota::per_minute(100)?);
/// assert_eq!("100/60s, margin 0s".parse::<Quota>()?, Quota::per_minute(100)?.without_margin());
/// assert_eq!(
///     "100/60".parse::<Quota>().unwrap_err().to_string(),
///     "invalid duration `60`: expected a unit after the number, such as 60s or 60ms"
/// );
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
impl FromStr for Quota {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        let invalid = || {
            let expected = "LIMIT/WINDOW, such as 100/60s, or LIMIT UNIT/WINDOW, such as 30000 tokens/60s, and optionally a burst and a margin: 100/60s, burst 10, margin 1s; or bucket CAPACITY, REFILL/TIME, such as bucket 40, 2/1s or bucket 1000 points, 50/1s";
            InvalidConfig::new("quota", text.escape_debug().to_string(), expected)
        };
        let mut parts = text.split(',').map(str::trim);
        let number = |text: &str| whole_number(text.trim())?.try_into().ok();
        let first = parts.next().unwrap_or_default();
        let bucket = first.strip_prefix("bucket ");
        let rate = if bucket.is_some() { parts.next().unwrap_or_default() } else { first };
        let (rate, window) = rate.split_once('/').ok_or_else(invalid)?;
        let limit = bucket.unwrap_or(rate).trim();
        let (limit, unit) = match limit.split_once(' ') {
            Some((limit, unit)) => (limit, known_unit(unit.trim())?),
            None => (limit, Unit::Requests),
        };
        let (limit, window) = (number(limit).ok_or_else(invalid)?, parse_duration(window.trim())?);
        let mut quota = match bucket {
            Some(_) => Self::bucket(limit, number(rate).ok_or_else(invalid)?, window)?,
            None => Self::new(limit, window)?,
        }
        .with_unit(unit)?;
        let (mut burst, mut margin) = (None, None);
        for part in parts {
            match part.split_once(' ') {
                Some(("burst", text)) if burst.is_none() => burst = Some(number(text).ok_or_else(invalid)?),
                Some(("margin", text)) if margin.is_none() => margin = Some(parse_duration(text.trim())?),
                _ => return Err(invalid()),
            }
        }
        // Sets the margin before the burst. With the default margin, a large burst may take more than the allowed 146
        // years to refill.
        if let Some(margin) = margin {
            quota = quota.with_margin(margin)?;
        }
        burst.map_or(Ok(quota), |burst| quota.with_burst(burst))
    }
}
