//! Parses the values that several rate-limit headers have in common.

use std::{
    cell::LazyCell,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, header::DATE};

use super::http_date::parse_http_date;

/// The longest delay that a server can request: 30 years. A longer requested delay is capped at this value. No caller
/// waits that long.
///
/// 30 years can be added to the time of any clock without overflow. 100 years overflow an `Instant` on FreeBSD,
/// according to the source of tokio's `Instant`.
pub const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns the time at which the response was sent: its `Date` header, or `wall` if there is no valid `Date`.
pub(super) fn served(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> SystemTime {
    let wall = LazyCell::new(wall);
    let date = values(headers, &DATE).next();
    date.and_then(|text| parse_http_date(text, || *wall)).unwrap_or_else(|| *wall)
}

/// Returns the values of a header that are valid text, without surrounding white space (RFC 9110 §5.5).
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| Some(value.to_str().ok()?.trim_matches([' ', '\t'])))
}

/// Parses `1*DIGIT`. Saturates at `u64::MAX`.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // The text consists of digits only, so the only possible error is an overflow.
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Parses `1*DIGIT [ "." 1*DIGIT ]`. Returns the whole part, saturating at `u64::MAX`, and the fraction in billionths,
/// rounded up.
pub(super) fn number(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    Some((whole_number(whole)?, billionths(fraction)?))
}

/// Parses the digits after a decimal point. Returns the billionths, rounded up.
pub(super) fn billionths(digits: &str) -> Option<u64> {
    let (first, rest) = digits.split_at_checked(9).unwrap_or((digits, "0"));
    let (first, rest) = (whole_number(first)? * 10_u64.pow(9 - first.len() as u32), rest);
    let is_more = !rest.is_empty() && whole_number(rest)? > 0;
    Some(first + u64::from(is_more))
}
