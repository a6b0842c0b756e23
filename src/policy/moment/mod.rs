//! Reads a duration or a moment in a header, in each of the forms that services send.

use std::{
    cell::LazyCell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    duration_text::{NANOS, UNITS},
    header_values::{MAX_REQUESTED_DELAY, number},
    http_date::parse_http_date,
    rfc3339::parse_rfc3339,
};

#[cfg(test)]
mod tests;

/// The unit of a number without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
}

/// The largest number of seconds that is a duration, 31 years. A larger number is a Unix time.
const MOST_SECONDS: u64 = 1_000_000_000;
/// The smallest Unix time in milliseconds, which is in the year 2001. As seconds, it would be in the year 33658.
const FIRST_MILLIS: u64 = 1_000_000_000_000;
/// The end of the Unix times in milliseconds, in the year 33658.
const END_OF_MILLIS: u64 = 1_000_000_000_000_000;

/// Returns the time from `served`, when the response was sent, until the moment that `text` states. Returns zero for a
/// moment in the past.
///
/// | text | meaning |
/// |---|---|
/// | `30`, `2.5` | up to 10^9: a duration, in the unit of `scale` |
/// | `1767229500`, `1767229500.25` | up to 10^12: a Unix time in seconds, unless `scale` is milliseconds |
/// | `1767229500000` | below 10^15: a Unix time in milliseconds |
/// | a larger number | [`MAX_REQUESTED_DELAY`], because its unit is unknown |
/// | a negative number | zero |
/// | `6m0s`, `2m52.8s`, `547ms` | a duration with the units `d`, `h`, `m`, `s`, `ms`, `us` and `ns` |
/// | `Sun, 06 Nov 1994 08:49:37 GMT` | an HTTP-date, in one of its three forms |
/// | `2026-01-01T01:00:25Z`, `2026-01-01T02:00:25.5+01:00` | a moment of RFC 3339 |
/// | `2026-01-01T01:05Z` | the same without seconds: the start of the next minute |
///
/// Returns `None` for any other text. Each result is rounded up to a nanosecond, and is at most `MAX_REQUESTED_DELAY`.
/// `served` is called at most once.
pub fn until(text: &str, scale: Scale, served: impl Fn() -> SystemTime) -> Option<Duration> {
    let since = |moment: SystemTime, served: SystemTime| moment.duration_since(served).unwrap_or_default();
    let delay = if let Some(delay) = of_number(text, scale, &served) {
        delay
    } else if let Some(nanos) = with_units(text) {
        from_nanos(nanos)
    } else if let Some(moment) = parse_rfc3339(text) {
        since(moment, served())
    } else {
        // The time of the response also determines the century of a two-digit year.
        let served = LazyCell::new(served);
        since(parse_http_date(text, || *served)?, *served)
    };
    Some(delay.min(MAX_REQUESTED_DELAY))
}

/// Reads one value of [`until`], or a comma-separated list of such values.
pub(super) fn each_until(
    text: &str,
    scale: Scale,
    served: impl Fn() -> SystemTime,
) -> impl Iterator<Item = Option<Duration>> {
    let read = move |text: &str| until(text.trim_matches([' ', '\t']), scale, &served);
    // A date may contain a comma.
    let whole = read(text);
    let members = text.split(',').filter(move |_| whole.is_none());
    whole.map(Some).into_iter().chain(members.map(read))
}

fn of_number(text: &str, scale: Scale, served: impl Fn() -> SystemTime) -> Option<Duration> {
    if let Some(rest) = text.strip_prefix('-') {
        return number(rest).map(|_| Duration::ZERO);
    }
    let (whole, fraction) = number(text)?;
    let sum = |unit: u128| from_nanos(product(whole, fraction, unit));
    let since_1970 = |moment: Duration| {
        let served = served().duration_since(UNIX_EPOCH).unwrap_or_default();
        moment.saturating_sub(served)
    };
    Some(match scale {
        _ if whole >= END_OF_MILLIS => MAX_REQUESTED_DELAY,
        _ if whole >= FIRST_MILLIS => since_1970(sum(1_000_000)),
        Scale::Millis => sum(1_000_000),
        Scale::Seconds if whole < MOST_SECONDS || (whole, fraction) == (MOST_SECONDS, 0) => sum(NANOS),
        Scale::Seconds => since_1970(sum(NANOS)),
    })
}

/// Parses numbers with units, such as `1h2m3.5s`. Returns the nanoseconds.
fn with_units(text: &str) -> Option<u128> {
    let (mut rest, mut sum) = (text, None);
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (value, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let ((whole, fraction), (_, nanos)) = (number(value)?, UNITS.iter().find(|(name, _)| *name == unit)?);
        sum = Some(product(whole, fraction, *nanos).saturating_add(sum.unwrap_or(0)));
        rest = after;
    }
    sum
}

/// Returns the nanoseconds of a number of units, rounded up.
fn product(whole: u64, billionths: u64, nanos_of_unit: u128) -> u128 {
    u128::from(whole) * nanos_of_unit + (u128::from(billionths) * nanos_of_unit).div_ceil(NANOS)
}

fn from_nanos(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanos % NANOS) as u32)
}
