//! Reads a duration or a moment in a header, in each of the forms that services send.

#[cfg(test)]
mod tests;

use std::{
    cell::LazyCell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, header::DATE};

use super::{
    header_values::{MAX_REQUESTED_DELAY, billionths, number, values},
    text::{NANOS, UNITS},
};

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

/// Returns the time at which the response was sent: its `Date` header, or `wall` if there is no valid `Date`.
pub(super) fn served(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> SystemTime {
    let wall = LazyCell::new(wall);
    let date = values(headers, &DATE).next();
    date.and_then(|text| parse_http_date(text, || *wall)).unwrap_or_else(|| *wall)
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

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Parses the time in a header: `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` or `Sun Nov  6
/// 08:49:37 1994`.
///
/// Accepts only the three forms of RFC 9110, which are case-sensitive. Returns `None` for any other text, and for a day
/// that the month does not have.
///
/// - A two-digit year is the latest year with these digits that is at most 50 years after `now`. `now` is called only
///   for such a year.
/// - The weekday must be a valid name, but may be wrong for the date. Rejecting such a date would cause an early retry
///   because of a server's mistake.
/// - Second 60, a leap second, is read as the first second of the next minute, so that the result is never early.
/// - Returns `None` for a year before 1970, because a server that sends such a year has not set its clock.
pub fn parse_http_date(text: &str, now: impl FnOnce() -> SystemTime) -> Option<SystemTime> {
    let (date, second) = match text.split_once(", ") {
        Some((weekday, rest)) => fixdate_or_rfc850(weekday, rest, now)?,
        None => asctime(text)?,
    };
    moment(date, second)
}

/// The year, month and day as written, and the seconds since midnight.
type Parts = ((u64, u64, u64), u64);

fn fixdate_or_rfc850(weekday: &str, rest: &str, now: impl FnOnce() -> SystemTime) -> Option<Parts> {
    let rest = rest.strip_suffix(" GMT")?;
    let (date, time) = rest.split_at_checked(rest.len().checked_sub(" 08:49:37".len())?)?;
    let second = second_of_day(time.strip_prefix(' ')?)?;
    if is_short_weekday(weekday) {
        let (day, month, year) = three(date, ' ')?;
        Some(((digits(year, 4)?, month_number(month)?, digits(day, 2)?), second))
    } else if WEEKDAYS.contains(&weekday) {
        let (day, month, year) = three(date, '-')?;
        let (year, month, day) = (digits(year, 2)?, month_number(month)?, digits(day, 2)?);
        Some(((four_digit_year(year, (month, day, second), now())?, month, day), second))
    } else {
        None
    }
}

fn asctime(text: &str) -> Option<Parts> {
    let (weekday, rest) = text.split_at_checked(3)?;
    let (month, rest) = rest.strip_prefix(' ')?.split_at_checked(3)?;
    let (day, rest) = rest.strip_prefix(' ')?.split_at_checked(2)?;
    let (time, year) = rest.strip_prefix(' ')?.split_at_checked(8)?;
    let day = day.strip_prefix(' ').map_or_else(|| digits(day, 2), |day| digits(day, 1))?;
    let date = (digits(year.strip_prefix(' ')?, 4)?, month_number(month)?, day);
    is_short_weekday(weekday).then_some((date, second_of_day(time)?))
}

fn is_short_weekday(text: &str) -> bool {
    text.len() == 3 && WEEKDAYS.iter().any(|weekday| weekday.starts_with(text))
}

/// Returns the number of the month, 1 for January.
fn month_number(text: &str) -> Option<u64> {
    (1..).zip(MONTHS).find_map(|(number, month)| (month == text).then_some(number))
}

/// Returns the latest year before 10000 that ends with these two digits and is at most 50 years after `now`. `rest`
/// contains the month, the day and the second of the day.
fn four_digit_year(two_digits: u64, rest: (u64, u64, u64), now: SystemTime) -> Option<u64> {
    let (month, day, second) = rest;
    let since_1970 = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = (days_to(1970, 1, 1) + since_1970 / DAY, since_1970 % DAY);
    let mut years = (19..100).rev().map(|century| century * 100 + two_digits);
    years.find(|year| (days_to(year - 50, month, day), second) <= now)
}

/// Parses a date and a time with an offset (RFC 3339 §5.6). A space may stand for the `T`, and the colon of
/// the offset may be missing.
///
/// A fraction of a second is rounded up to a nanosecond, and second 60, a leap second, is the first second of the next
/// minute, so that the result is never early. A time without seconds, as Jira sends it, is rounded up to the next
/// minute. Returns `None` for a year before 1970, as for a moment that does not exist.
fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let (date, rest) = text.split_at_checked("2026-01-01".len())?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, offset) = rest.split_at(rest.find(['Z', 'z', '+', '-'])?);
    let (second, fraction) = match time.split_at_checked("01:00:25".len()) {
        Some((time, "")) => (second_of_day(time)?, 0),
        Some((time, fraction)) => (second_of_day(time)?, billionths(fraction.strip_prefix('.')?)?),
        None => (second_of_day(&format!("{time}:60"))?, 0),
    };
    let (year, month, day) = three(date, '-')?;
    let date = (digits(year, 4)?, digits(month, 2)?, digits(day, 2)?);
    let local = moment(date, second)?.checked_add(Duration::from_nanos(fraction))?;
    let (sign, offset) = offset.split_at_checked(1)?;
    if sign.eq_ignore_ascii_case("z") {
        return offset.is_empty().then_some(local);
    }
    let (hours, minutes) = offset.split_once(':').or_else(|| offset.split_at_checked(2))?;
    let ahead = digits(hours, 2)? * 3_600 + digits(minutes, 2).filter(|minutes| *minutes < 60)? * 60;
    let ahead = Some(ahead).filter(|seconds| *seconds < DAY).map(Duration::from_secs)?;
    if sign == "+" { local.checked_sub(ahead) } else { local.checked_add(ahead) }
}

/// The seconds of a day.
const DAY: u64 = 86_400;

/// Returns a moment from its date and its second of the day. Returns `None` for a day that the month does not have, and
/// for a year before 1970, because a server that sends such a year has not set its clock.
fn moment((year, month, day): (u64, u64, u64), second: u64) -> Option<SystemTime> {
    let exists = year >= 1970 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    let since_1970 = exists.then(|| days_to(year, month, day) - days_to(1970, 1, 1))?;
    UNIX_EPOCH.checked_add(Duration::from_secs(since_1970 * DAY + second))
}

/// Parses exactly `count` digits. `str::parse` alone would accept a sign.
fn digits(text: &str, count: usize) -> Option<u64> {
    let all = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if all { text.parse().ok() } else { None }
}

fn three(text: &str, separator: char) -> Option<(&str, &str, &str)> {
    let (first, rest) = text.split_once(separator)?;
    let (second, third) = rest.split_once(separator)?;
    Some((first, second, third))
}

/// Parses a time such as `08:49:37`. Returns the seconds since midnight.
fn second_of_day(text: &str) -> Option<u64> {
    let (hour, minute, second) = three(text, ':')?;
    let (hour, minute, second) = (digits(hour, 2)?, digits(minute, 2)?, digits(second, 2)?);
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3_600 + minute * 60 + second)
}

fn is_leap(year: u64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the number of the day, counted from 1 January of the year 1, which is day 1. A day after the end of its
/// month is treated as a day of the next month.
fn days_to(year: u64, month: u64, day: u64) -> u64 {
    let years = year - 1;
    let months: u64 = (1..month).map(|month| days_in_month(year, month)).sum();
    years * 365 + years / 4 - years / 100 + years / 400 + months + day
}
