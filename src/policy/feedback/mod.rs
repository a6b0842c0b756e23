//! Reads from a response how long the caller must wait before the next request.

use std::{
    cell::LazyCell,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, StatusCode, header::RETRY_AFTER};

use super::{
    adaptive::Acceptance,
    grpc::{self, Code},
    header_values::{MAX_REQUESTED_DELAY, decimal, served, values},
    http_date, rate_limit,
};

#[cfg(test)]
mod tests;

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static X_MS_RETRY_AFTER_MS: HeaderName = HeaderName::from_static("x-ms-retry-after-ms");

/// The prefixes of all header names that this module, [`rate_limit`] and [`grpc`] read.
const PREFIXES: [&str; 5] = ["retry-after", "x-ms-retry-after", "ratelimit", "x-ratelimit", "grpc-"];

/// Returns whether the response has a header that this module, [`rate_limit`] or [`grpc`] reads. Few responses have
/// such a header. A single scan over all names costs less than a dozen lookups.
pub(crate) fn has_limits(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| is_relevant(name.as_str()))
}

fn is_relevant(name: &str) -> bool {
    // Checking the first character excludes most names.
    name.starts_with(['r', 'x', 'g']) && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the delay that the server requested, counted from the receipt of the response.
///
/// Returns `None` if no header has a valid value. Returns zero for a date in the past, so that the ordinary backoff
/// applies.
///
/// Reads the first of these headers that has a valid value:
///
/// | header | value |
/// |---|---|
/// | `retry-after-ms`, then `x-ms-retry-after-ms` | milliseconds, which is more precise than `Retry-After` |
/// | `Retry-After` (RFC 9110 §10.2.3) | seconds, or an HTTP-date in one of its three forms |
///
/// The returned delay is never shorter than a valid value of the selected header:
///
/// - A fraction is rounded up: `1.5` is 2 s, and `1500.7` is 1501 ms.
/// - Of a comma-separated list of numbers, the largest number is used: `3, 9` is 9 s. Proxies join several headers of
///   the same name in this way.
/// - Any other value with a comma is parsed as a date.
/// - If the header appears several times, the longest delay is used.
/// - A delay longer than [`MAX_REQUESTED_DELAY`], or too large for 64 bits, is capped at `MAX_REQUESTED_DELAY`.
///
/// A number with a sign, a unit or an exponent is invalid.
///
/// A date is compared to the response's own `Date` header, because the clocks of server and client differ. Without a
/// `Date` header it is compared to `wall`, which is called at most once.
pub fn retry_after(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let served = LazyCell::new(|| served(headers, wall));
    let millis = |text: &str| largest(text).map(Duration::from_millis);
    let seconds_or_date = |text: &str| match largest(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        // The time of the response also determines the century of a two-digit year.
        None => http_date::parse_http_date(text, || *served)
            .map(|moment| moment.duration_since(*served).unwrap_or(Duration::ZERO)),
    };
    longest(headers, &RETRY_AFTER_MS, millis)
        .or_else(|| longest(headers, &X_MS_RETRY_AFTER_MS, millis))
        .or_else(|| longest(headers, &RETRY_AFTER, seconds_or_date))
        .map(|delay| delay.min(MAX_REQUESTED_DELAY))
}

fn longest(
    headers: &HeaderMap,
    name: &HeaderName,
    parse: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    values(headers, name).filter_map(parse).max()
}

/// Returns the largest number of a comma-separated list, rounded up. Returns `None` if any member is not a number,
/// because the text may be a date, which also contains a comma.
fn largest(text: &str) -> Option<u64> {
    text.split(',').try_fold(0, |largest: u64, member| {
        let (whole, fraction) = decimal(member.trim_matches([' ', '\t']))?;
        Some(largest.max(whole.saturating_add(fraction.into())))
    })
}

/// Returns whether the server is currently rejecting all requests, not only this one.
///
/// | response | throttled |
/// |---|---|
/// | 429, 503, 529 (overloaded) | yes |
/// | gRPC's `RESOURCE_EXHAUSTED` or `UNAVAILABLE` in the response headers, with any HTTP status | yes |
/// | any other status | no |
///
/// The `Retry-After` of a throttled response pauses every caller of the limiter. The `Retry-After` of any other
/// response delays only the call that received the response. The statuses 520–524 and 530 report a failed exchange
/// between a CDN and its origin. These statuses also delay only one call, because one slow resource must not stop all
/// callers.
///
/// For a response without `grpc-status`, this function costs one header lookup.
pub(crate) fn is_throttled(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status.as_u16(), 429 | 503 | 529) || grpc::is_throttled(headers)
}

/// Returns whether the server accepted the request, with regard to its rate limit. `has_no_permits` returns whether
/// the headers report a quota without remaining permits.
pub(crate) fn acceptance(
    status: StatusCode,
    code: Option<Code>,
    has_no_permits: impl Fn() -> bool,
) -> Acceptance {
    match (status.as_u16(), code) {
        (429 | 529, _) | (_, Some(Code::RESOURCE_EXHAUSTED)) => Acceptance::Throttled,
        (503, _) | (_, Some(Code::UNAVAILABLE)) if has_no_permits() => Acceptance::Throttled,
        (503, _) | (_, Some(Code::UNAVAILABLE)) => Acceptance::Unavailable,
        _ => Acceptance::Accepted,
    }
}

/// Returns the delay that the server requested: the longer of [`retry_after`] and a failed gRPC call's
/// [delay](grpc::requested_delay).
pub(crate) fn pause(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Option<Duration> {
    retry_after(headers, wall).max(grpc::requested_delay(headers))
}

/// Returns the delay that the server requested, or the delay that its [remaining] permits imply.
///
/// Returns the delay of [`pause`] if the server requested one. Otherwise, a [throttled](is_throttled) response without
/// remaining permits implies a delay until permits become available. Of several quotas, the longest delay is used.
/// Returns `None` if the server requests no delay, or if the delay has passed. Call it only if the response
/// [has limits](has_limits).
///
/// [remaining]: super::remaining()
pub(crate) fn requested_delay(
    status: StatusCode,
    headers: &HeaderMap,
    wall: impl Fn() -> SystemTime,
) -> Option<Duration> {
    let delay = pause(headers, &wall).or_else(|| {
        let remaining = is_throttled(status, headers).then(|| rate_limit::remaining(headers, &wall))?;
        let empty = remaining.iter().filter(|remaining| remaining.left() == 0);
        empty.map(|remaining| remaining.reset_after()).max()
    });
    delay.filter(|delay| !delay.is_zero())
}
