//! Reads the rate-limit headers in each of their forms.

use std::{
    cell::LazyCell,
    collections::HashMap,
    iter,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, header::AGE};

use super::list::{Remaining, Size, add};
use crate::policy::{
    header_values::{decimal, served, values, whole_number},
    structured::{Text, members, name, natural},
};

static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

static DRAFT_6: [HeaderName; 4] = [
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-policy"),
];
static UNSPECIFIED: [HeaderName; 4] = [
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-policy"),
];

/// Returns the remaining permits of the server's quotas, as its rate-limit headers report them.
///
/// Returns at most [`MAX_POLICIES`](super::MAX_POLICIES) quotas, ordered by their remaining permits, fewest first.
/// Quotas with equally many remaining permits are ordered by their resets, longest first. The list is empty if no
/// header is valid.
///
/// Reads the first of these forms that contains a valid quota:
///
/// 1. `RateLimit: "burst";r=50;t=30`, draft-ietf-httpapi-ratelimit-headers-10. The name may also be a Token. If `t` is
///    missing, the parameter `w` for the same name in `RateLimit-Policy` replaces it. An item is skipped if it has no
///    `r`, or if it has neither `t` nor `w`. It is also skipped if its policy does not count requests, as with
///    `qu="content-bytes"`.
/// 2. `RateLimit: limit=10, remaining=10, reset=4`, draft -07. In this form and in the next two, the window is the
///    parameter `w` of the policy with the same limit, as in `RateLimit-Policy: 10;w=60`.
/// 3. `RateLimit-Remaining`, `RateLimit-Reset`, `RateLimit-Limit` and `RateLimit-Policy`, up to draft -06.
/// 4. The same headers with the prefix `X-`.
///
/// In forms 3 and 4:
///
/// - A reset of up to 10^9 is a number of seconds. A larger number is a Unix time in seconds, compared to the
///   response's own `Date`, because the clocks of server and client differ. Without a `Date` it is compared to `wall`,
///   which is called at most once. A reset of 10^12 or more is malformed, because its unit is unknown.
/// - Each number of a list belongs to a different quota.
/// - Remaining permits are rounded down and resets are rounded up, so that no request is sent early.
///
/// A malformed header is ignored completely, as RFC 9651 specifies. The headers of a response with an `Age` above zero
/// are ignored, because they report the permits that remained when the response was cached.
pub fn remaining(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Vec<Remaining> {
    if values(headers, &AGE).any(|age| whole_number(age).is_some_and(|age| age > 0)) {
        return Vec::new();
    }
    let served = LazyCell::new(|| served(headers, wall).duration_since(UNIX_EPOCH).unwrap_or_default());
    // If a new draft renames a parameter, add another entry to this list.
    let forms: [&dyn Fn() -> Option<Vec<Remaining>>; 4] = [
        // draft-ietf-httpapi-ratelimit-headers-10
        &|| items(headers, ["r", "t", "pk"], ["w", "q", "qu"]),
        // draft-ietf-httpapi-ratelimit-headers-07
        &|| dictionary(headers, ["remaining", "reset", "limit"]),
        // draft-ietf-httpapi-ratelimit-headers-06 and earlier
        &|| fields(headers, &DRAFT_6, || *served),
        // No specification defines these headers. GitHub, Reddit, Brave and many others send them.
        &|| fields(headers, &UNSPECIFIED, || *served),
    ];
    forms.iter().filter_map(|read| read()).find(|list| !list.is_empty()).unwrap_or_default()
}

/// Reads the header `RateLimit` as a List with one Item for each policy. The limit and the window of each policy are
/// parameters in the header `RateLimit-Policy`.
fn items(headers: &HeaderMap, names: [&str; 3], size_names: [&str; 3]) -> Option<Vec<Remaining>> {
    let sizes = LazyCell::new(|| sizes(headers, size_names));
    let mut list = Vec::new();
    members(headers, &RATELIMIT, |text| {
        let name = name(text.value()?)?;
        let [left, reset_after, partition] = parameters(text, names)?;
        let Some(size) = sizes.get(name).copied().unwrap_or(Some((None, None))) else { return Some(()) };
        let reset_after = match reset_after {
            Some(value) => Some(Duration::from_secs(natural(value)?)),
            None => size.1,
        };
        if let (Some(left), Some(reset_after)) = (left.map(natural), reset_after) {
            add(&mut list, policy(name, partition.map(str::as_bytes)), left?, reset_after, size);
        }
        Some(())
    })?;
    Some(list)
}

/// Parses the parameters of a List member. Returns the last value of each parameter in `names`.
fn parameters<'a, const N: usize>(text: &mut Text<'a>, names: [&str; N]) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    while let Some((key, value)) = text.parameter()? {
        if let Some(place) = names.iter().position(|name| key == *name) {
            found[place] = Some(value);
        }
    }
    Some(found)
}

/// Returns the limit and the window of each policy name, or `None` for a policy that does not count requests. If the
/// partitions of a policy have different limits or windows, the lowest limit and the longest window are returned.
fn sizes<'a>(headers: &'a HeaderMap, names: [&str; 3]) -> HashMap<&'a str, Option<Size>> {
    let mut sizes: HashMap<_, Option<Size>> = HashMap::new();
    let read = members(headers, &RATELIMIT_POLICY, |text| {
        let name = name(text.value()?)?;
        let [window, limit, unit] = parameters(text, names)?;
        let size = sizes.entry(name).or_insert(Some((None, None)));
        if unit.is_some_and(|unit| unit != "\"requests\"") {
            *size = None;
        }
        let Some((known_limit, known_window)) = size else { return Some(()) };
        if let Some(window) = window {
            let window = natural(window).filter(|seconds| *seconds > 0)?;
            *known_window = Some(Duration::from_secs(window)).max(*known_window);
        }
        if let Some(limit) = limit.and_then(natural) {
            *known_limit = Some(known_limit.map_or(limit, |known| known.min(limit)));
        }
        Some(())
    });
    read.map(|()| sizes).unwrap_or_default()
}

/// Returns the window of each policy, by its limit, as in `100;w=60`.
fn windows(headers: &HeaderMap, name: &HeaderName) -> HashMap<u64, Duration> {
    let mut windows = HashMap::new();
    let read = members(headers, name, |text| {
        let limit = natural(text.value()?);
        let [window] = parameters(text, ["w"])?;
        let window = window.and_then(natural).filter(|seconds| *seconds > 0);
        windows.extend(limit.zip(window.map(Duration::from_secs)));
        Some(())
    });
    read.map(|()| windows).unwrap_or_default()
}

/// Reads the header `RateLimit` as a Dictionary, which describes one policy without a name.
fn dictionary(headers: &HeaderMap, names: [&str; 3]) -> Option<Vec<Remaining>> {
    let mut found = [None; 3];
    members(headers, &RATELIMIT, |text| {
        let (key, value) = text.pair()?;
        while text.parameter()?.is_some() {}
        if let Some(place) = names.iter().position(|name| key == *name) {
            found[place] = Some(value);
        }
        Some(())
    })?;
    let [left, reset_after, limit] = found;
    let (left, reset_after) = (natural(left?)?, Duration::from_secs(natural(reset_after?)?));
    let limit = limit.and_then(natural);
    let size = (limit, limit.and_then(|limit| windows(headers, &RATELIMIT_POLICY).get(&limit).copied()));
    let mut list = Vec::new();
    add(&mut list, policy(RATELIMIT.as_str(), None), left, reset_after, size);
    Some(list)
}

/// Reads up to four headers. The first three contain one number or a list of numbers. Numbers at the same index belong
/// together, as in Brave's `X-RateLimit-Remaining: 1, 1000` and `X-RateLimit-Reset: 1, 1419704`. The headers with the
/// limit and the policy are optional.
fn fields(
    headers: &HeaderMap,
    [left_name, more_in_name, limit_name, policy_name]: &[HeaderName; 4],
    served: impl Fn() -> Duration,
) -> Option<Vec<Remaining>> {
    headers.get(left_name)?;
    let mut resets = numbers(headers, more_in_name);
    let mut limits = numbers(headers, limit_name);
    let windows = LazyCell::new(|| windows(headers, policy_name));
    let mut list = Vec::new();
    for (place, left) in (0u64..).zip(numbers(headers, left_name)) {
        let ((left, _), (seconds, fraction)) = (left?, resets.next()??);
        let reset_after = match seconds.saturating_add(fraction.into()) {
            seconds @ ..=1_000_000_000 => Duration::from_secs(seconds),
            // `RateLimit-Reset` without `X-` may also be a Unix time, as GitLab sends it.
            moment @ ..1_000_000_000_000 => Duration::from_secs(moment).saturating_sub(served()),
            _ => return None, // could be in milliseconds, which OpenRouter sends
        };
        let limit = limits.next().flatten().map(|(limit, _)| limit);
        add(
            &mut list,
            policy(left_name.as_str(), Some(&place.to_be_bytes())),
            left,
            reset_after,
            (limit, limit.and_then(|limit| windows.get(&limit).copied())),
        );
    }
    resets.next().is_none().then_some(list)
}

/// Returns the whole part of each number in the headers of this name, and whether its fraction is above zero. Reddit
/// sends fractions, as in `X-Ratelimit-Remaining: 599.0`.
fn numbers(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = Option<(u64, bool)>> {
    let lines = headers.get_all(name).iter();
    let members = lines.flat_map(|line| line.to_str().unwrap_or_default().split(','));
    members.map(|text| decimal(text.trim_matches([' ', '\t'])))
}

/// Returns the 64-bit FNV-1a hash (<http://www.isthe.com/chongo/tech/comp/fnv/>), which is the same in every build and
/// process.
pub(super) fn policy(name: &str, partition: Option<&[u8]>) -> u64 {
    // A zero byte separates the name from the partition. No name contains a zero byte, so different policies never have
    // the same bytes.
    let partition = partition.map(|partition| [b"\0", partition]);
    let parts = iter::once(name.as_bytes()).chain(partition.into_iter().flatten());
    parts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
