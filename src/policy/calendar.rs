//! The calendar: days, months and leap years, for the dates in headers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The seconds of a day.
pub(super) const DAY: u64 = 86_400;

/// Returns a moment from its date and its second of the day. Returns `None` for a day that the month does not have, and
/// for a year before 1970, because a server that sends such a year has not set its clock.
pub(super) fn moment((year, month, day): (u64, u64, u64), second: u64) -> Option<SystemTime> {
    let exists = year >= 1970 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    let since_1970 = exists.then(|| days_to(year, month, day) - days_to(1970, 1, 1))?;
    UNIX_EPOCH.checked_add(Duration::from_secs(since_1970 * DAY + second))
}

/// Parses exactly `count` digits. `str::parse` alone would accept a sign.
pub(super) fn digits(text: &str, count: usize) -> Option<u64> {
    let all = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if all { text.parse().ok() } else { None }
}

pub(super) fn three(text: &str, separator: char) -> Option<(&str, &str, &str)> {
    let (first, rest) = text.split_once(separator)?;
    let (second, third) = rest.split_once(separator)?;
    Some((first, second, third))
}

/// Parses a time such as `08:49:37`. Returns the seconds since midnight.
pub(super) fn second_of_day(text: &str) -> Option<u64> {
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
pub(super) fn days_to(year: u64, month: u64, day: u64) -> u64 {
    let years = year - 1;
    let months: u64 = (1..month).map(|month| days_in_month(year, month)).sum();
    years * 365 + years / 4 - years / 100 + years / 400 + months + day
}
