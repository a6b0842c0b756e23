//! Quotas as text: `100/60s, burst 10, margin 1s`, or `bucket 40, 2/1s, margin 1s`. A unit follows the limit.

use std::{fmt, str::FromStr};

use super::Quota;
use crate::{
    config::InvalidConfig,
    policy::{
        Unit,
        duration_text::{DurationText, parse_duration},
        header_values::whole_number,
    },
};

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
            Some((limit, unit)) => {
                (limit, Unit::NAMES.iter().find(|(_, name)| *name == unit.trim()).ok_or_else(invalid)?.0)
            }
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
