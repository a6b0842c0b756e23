//! Reads the values that the headers of server limits have in common.

use std::{
    cell::LazyCell,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, header::DATE};

use super::http_date::parse_http_date;

/// The longest requested delay, 30 years. A longer one is read as this. No call waits that long, so the caller gives
/// up.
///
/// Any clock can add 30 years. 100 years overflow an `Instant` on FreeBSD, as the source of tokio's `Instant` notes.
pub const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns when the response was sent: by its `Date`, otherwise by `wall`.
pub(super) fn served(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> SystemTime {
    let wall = LazyCell::new(wall);
    let date = values(headers, &DATE).next();
    date.and_then(|text| parse_http_date(text, || *wall)).unwrap_or_else(|| *wall)
}

/// Returns the values that are text, without surrounding white space (RFC 9110 §5.5).
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| Some(value.to_str().ok()?.trim_matches([' ', '\t'])))
}

/// Reads `1*DIGIT`. Saturates.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // The text has digits only, so the only possible error is overflow.
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Reads `1*DIGIT [ "." 1*DIGIT ]`. Returns the whole part, which saturates, and whether the fraction is above zero.
pub(super) fn decimal(text: &str) -> Option<(u64, bool)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    Some((whole_number(whole)?, whole_number(fraction)? > 0))
}
