//! The headers that state a delay, and the names of all headers that concern a limit.

use std::{
    array,
    cell::LazyCell,
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, header::RETRY_AFTER};

use crate::policy::{
    header_values::values,
    moment::{Scale, each_until, served},
    rate_limit,
};

/// The headers that state a delay, in the order of their precedence, with the unit of a number.
pub(super) static DELAYS: [(HeaderName, Scale); 5] = [
    // Milliseconds are more precise than `Retry-After`. OpenAI and Azure send both.
    (HeaderName::from_static("retry-after-ms"), Scale::Millis),
    (HeaderName::from_static("x-ms-retry-after-ms"), Scale::Millis),
    (RETRY_AFTER, Scale::Seconds),
    // MailerLite.
    (HeaderName::from_static("x-ratelimit-retry-after"), Scale::Seconds),
    // Oracle Aggregation Gateway.
    (HeaderName::from_static("requestlimit-default-retryafter"), Scale::Millis),
];

/// The names of all headers that this module and `rate_limit` read, grouped by their first letter and sorted.
static NAMES: LazyLock<[Vec<&str>; 26]> = LazyLock::new(|| {
    let own = DELAYS
        .iter()
        .map(|(name, _)| name.as_str())
        .chain(super::SCOPES.iter().map(|(name, ..)| name.as_str()));
    let mut names: Vec<_> = own.chain(rate_limit::names()).collect();
    names.sort_unstable();
    array::from_fn(|letter| names.iter().copied().filter(|name| place(name) == letter).collect())
});

/// Returns the position of the name's first letter in the alphabet.
fn place(name: &str) -> usize {
    name.bytes().next().unwrap_or_default().wrapping_sub(b'a').into()
}

/// Returns whether the response has a header that this module, `rate_limit` or `grpc` reads. Few responses have
/// such a header. A single scan over all names costs less than a dozen lookups.
pub(crate) fn has_limits(headers: &HeaderMap) -> bool {
    let known = &*NAMES;
    headers.keys().map(HeaderName::as_str).any(|name| {
        let names = known.get(place(name)).map_or(&[][..], Vec::as_slice);
        names.binary_search(&name).is_ok() || name.starts_with("grpc-")
    })
}

/// Returns the delay that the server requested, counted from the receipt of the response.
///
/// Returns `None` if no header has a valid value. Returns zero for a date in the past, so that the ordinary backoff
/// applies.
///
/// Reads the first of these headers that has a valid value: those of `custom`, `retry-after-ms`, `x-ms-retry-after-ms`,
/// `Retry-After` (RFC 9110 §10.2.3), and those of single services. Its value has one of the forms of
/// [`until`](crate::policy::moment::until), and is rounded up:
///
/// - Of a comma-separated list, the longest delay is used: `3, 9` is 9 s. Proxies join several headers of the same name
///   in this way.
/// - If the header appears several times, the longest delay is used.
/// - A delay longer than [`MAX_REQUESTED_DELAY`](crate::policy::header_values::MAX_REQUESTED_DELAY) is capped at it.
/// - A negative number is not valid.
///
/// A moment is compared to the response's own `Date` header, because the clocks of server and client differ. Without a
/// `Date` header it is compared to `wall`, which is called at most once.
pub fn retry_after(
    headers: &HeaderMap,
    custom: &[(HeaderName, Scale)],
    wall: impl FnOnce() -> SystemTime,
) -> Option<Duration> {
    let served = LazyCell::new(|| served(headers, wall));
    let longest = |text: &str, scale| {
        // A negative number states no delay, so that the next header counts.
        if text.starts_with('-') && !text.contains(',') {
            return None;
        }
        let mut delays = each_until(text, scale, || *served);
        delays.try_fold(Duration::ZERO, |longest, delay| Some(longest.max(delay?)))
    };
    let of_header =
        |(name, scale): &(_, _)| values(headers, name).filter_map(|text| longest(text, *scale)).max();
    custom.iter().chain(&DELAYS).find_map(of_header)
}
