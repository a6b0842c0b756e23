//! Parses moments of RFC 3339, such as `2026-01-01T01:00:25Z`, also without seconds.

use std::time::{Duration, SystemTime};

use super::{
    calendar::{DAY, digits, moment, second_of_day, three},
    header_values::billionths,
};

/// Parses a date and a time with an offset (RFC 3339 §5.6). A space may stand for the `T`.
///
/// A fraction of a second is rounded up to a nanosecond, and second 60, a leap second, is the first second of the next
/// minute, so that the result is never early. A time without seconds, as Jira sends it, is rounded up to the next
/// minute. Returns `None` for a year before 1970, as for a moment that does not exist.
pub(super) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
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
    let (hours, minutes) = offset.split_once(':')?;
    let ahead = digits(hours, 2)? * 3_600 + digits(minutes, 2).filter(|minutes| *minutes < 60)? * 60;
    let ahead = Some(ahead).filter(|seconds| *seconds < DAY).map(Duration::from_secs)?;
    if sign == "+" { local.checked_sub(ahead) } else { local.checked_add(ahead) }
}
