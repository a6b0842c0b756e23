//! Reads the remaining permits of the server's quotas from the headers of a response.

mod quota_headers;
mod remaining;
mod structured_quotas;
#[cfg(test)]
mod tests;

pub(crate) use self::quota_headers::names;
#[cfg(any(test, fuzzing))]
pub use self::remaining::MAX_POLICIES;
pub use self::{
    quota_headers::QuotaHeaders,
    remaining::{QuotaName, Remaining, Unit},
};

use std::{
    cell::LazyCell,
    collections::HashMap,
    iter::once,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, header::AGE};

use self::{
    quota_headers::{Field, Row, of_header, row},
    remaining::add,
};
use super::{
    header_values::{MAX_REQUESTED_DELAY, members, natural, number, values, whole_number},
    moment::{Scale, each_until, served},
};

/// GitHub's name for the resource of all requests but a few, such as searches.
const ACCOUNT: [&str; 1] = ["core"];

/// A header that a row reads.
#[derive(Clone, Copy)]
struct Hit<'a> {
    row: usize,
    field: Field,
    value: &'a HeaderValue,
}

/// Returns the remaining permits of the server's quotas, as its rate-limit headers report them.
///
/// Returns at most `MAX_POLICIES` quotas, ordered by their remaining permits, fewest first.
/// Quotas with equally many remaining permits are ordered by their resets, longest first. The list is empty if no
/// header is valid.
///
/// The table in `rows` lists the headers. Of its first forms, only the first one that contains a valid quota is read,
/// because a server that sends several of them reports the same quota in each. If permits of that quota remain, the
/// empty quotas of a later form are added, because a gateway may have put the first form in front of the server's own:
///
/// 1. `RateLimit: "burst";r=50;t=30`, draft-ietf-httpapi-ratelimit-headers-10 and -11, whose syntax is the same. The
///    name may also be a Token. If `t` is missing, the parameter `w` for the same name in `RateLimit-Policy` replaces
///    it. An item is skipped if it has no `r`, or if it has neither `t` nor `w`. The unit is the parameter `qu` of the
///    policy.
/// 2. `RateLimit: limit=10, remaining=10, reset=4`, draft -07. In this form and in the next two, the window is the
///    parameter `w` of the policy with the same limit, as in `RateLimit-Policy: 10;w=60`.
/// 3. `RateLimit-Remaining`, `RateLimit-Reset`, `RateLimit-Limit` and `RateLimit-Policy`, up to draft -06.
/// 4. The same headers with the prefix `X-`, and then those with the prefix `X-Rate-Limit`.
///
/// In all rows but the first two forms:
///
/// - A reset has any form of [`until`](crate::policy::moment::until). A reset that is a moment is compared to the
///   response's own `Date`, because the clocks of server and client differ. Without a `Date` it is compared to `wall`,
///   which is called at most once.
/// - Each number of a list belongs to a different quota.
/// - Remaining permits are rounded down, and resets are rounded up, so that no request is sent early. Remaining permits
///   below zero are zero.
/// - Without a reset, more permits are expected after a window, and in a bucket after its share of one permit.
///
/// A malformed header is ignored completely, as RFC 9651 specifies. So are the headers of a row that contradict each
/// other, because more permits remain than its limit. A quota whose limit is zero or negative is ignored, because
/// services report such a limit for a quota that they do not apply. The headers of a response with an `Age` above zero
/// are ignored, because they report the permits that remained when the response was cached.
///
/// The rows of `custom` come first, and a header of theirs belongs to no other row.
pub fn remaining(
    headers: &HeaderMap,
    custom: &[QuotaHeaders],
    wall: impl FnOnce() -> SystemTime,
) -> Vec<Remaining> {
    if values(headers, &AGE).any(|age| whole_number(age).is_some_and(|age| age > 0)) {
        return Vec::new();
    }
    let served = LazyCell::new(|| served(headers, wall));
    let mut hits = Vec::new();
    for (name, value) in headers {
        let of_custom = |(row, one): (usize, &QuotaHeaders)| Some((row, one.field(name)?));
        match custom.iter().enumerate().find_map(of_custom) {
            Some((row, field)) => hits.push(Hit { row, field, value }),
            None => hits.extend(of_header(name.as_str()).map(|(row, field)| Hit {
                row: custom.len() + row,
                field,
                value,
            })),
        }
    }
    hits.sort_by_key(|hit| hit.row);
    let (mut list, mut has_form, mut is_empty) = (Vec::new(), false, false);
    for hits in hits.chunk_by(|one, other| one.row == other.row) {
        let place = hits[0].row;
        let row = match custom.get(place) {
            Some(custom) => &custom.row(),
            None => row(place - custom.len()),
        };
        if row.is_form && is_empty {
            continue;
        }
        let mut quotas = row.read(hits, || *served).unwrap_or_default();
        if row.is_form {
            quotas.retain(|quota| !has_form || quota.left == 0);
            has_form |= !quotas.is_empty();
            is_empty |= quotas.iter().any(|quota| quota.left == 0);
        }
        quotas.into_iter().for_each(|quota| add(&mut list, quota));
    }
    list
}

impl Row<'_> {
    /// Reads the headers of this row. Returns `None` if they are malformed or contradict each other.
    fn read(&self, hits: &[Hit<'_>], served: impl Fn() -> SystemTime) -> Option<Vec<Remaining>> {
        let mut quotas = if has(hits, Field::Structured) {
            structured_quotas::read(self, hits)
        } else if has(hits, Field::Lists) {
            self.lists(hits)
        } else if has(hits, Field::UsedOfLimit) {
            self.used_of_limit(hits)
        } else {
            self.numbers(hits, served)
        }?;
        // Brave and Tyk report a limit of zero for a quota that they do not apply.
        quotas.retain(|quota| quota.limit != Some(0));
        let is_possible = |quota: &Remaining| quota.limit.is_none_or(|limit| quota.left <= limit);
        quotas.iter().all(is_possible).then_some(quotas)
    }

    /// Reads headers that contain one value or a list of values. Values at the same index belong together, as in
    /// Brave's `X-RateLimit-Remaining: 1, 1000` and `X-RateLimit-Reset: 1, 1419704`.
    fn numbers(&self, hits: &[Hit<'_>], served: impl Fn() -> SystemTime) -> Option<Vec<Remaining>> {
        let has_left = has(hits, Field::Remaining);
        let counts = |field| {
            let members = texts(hits, field).flat_map(|text| text.split(','));
            members.map(move |text| count(text, field == Field::Used))
        };
        let amounts = counts(if has_left { Field::Remaining } else { Field::Used });
        let mut limits = counts(Field::Limit);
        let reset = if has(hits, Field::ResetAfter) { Field::ResetAfter } else { Field::Reset };
        let (has_reset, mut resets) =
            (has(hits, reset), texts(hits, reset).flat_map(|text| each_until(text, self.scale, &served)));
        let windows = LazyCell::new(|| windows(lines(hits, Field::Windows)));
        let mut stated = Vec::new();
        for (field, scale) in [(Field::Window, self.scale), (Field::WindowMillis, Scale::Millis)] {
            stated.extend(texts(hits, field).flat_map(|text| each_until(text, scale, &served)));
        }
        let documented = self.window.filter(|_| !has_reset);
        let scope: Vec<_> = texts(hits, Field::Scope).collect();
        let scope_hash = policy("", scope.iter().map(|scope| scope.as_bytes())).to_be_bytes();
        let name = QuotaName::of(&scope.join("/"), &self.name);
        let mut quotas = Vec::new();
        for (place, amount) in (0u64..).zip(amounts) {
            let (amount, limit) = (amount?, limits.next().flatten());
            let left = if has_left { amount } else { limit?.saturating_sub(amount) };
            let index = place.to_be_bytes();
            // One window applies to all quotas of a list.
            let stated = if let [one] = stated[..] { Some(one) } else { stated.get(place as usize).copied() };
            let stated = stated.flatten().filter(|window| !window.is_zero());
            let window = limit.and_then(|limit| windows.get(&limit).copied()).or(stated).or(documented);
            let policy = policy(&self.name, [&index[..], &scope_hash]);
            let reset_after = if has_reset { resets.next()?? } else { window? };
            let is_of_resource = !scope.is_empty() && scope != ACCOUNT;
            let quota = Remaining::new(policy, name, self.unit, left, reset_after);
            quotas.push(Remaining { is_of_resource, is_estimate: !has_reset, limit, window, ..quota });
        }
        resets.next().is_none().then_some(quotas)
    }

    /// Reads `32/40`.
    fn used_of_limit(&self, hits: &[Hit<'_>]) -> Option<Vec<Remaining>> {
        let quota = |text: &str| self.bucket(&self.name, text);
        texts(hits, Field::UsedOfLimit).map(quota).collect()
    }

    /// Returns the quota of `used/limit`, a bucket that refills evenly.
    fn bucket(&self, name: &str, text: &str) -> Option<Remaining> {
        let (used, limit) = text.split_once('/')?;
        let window = self.window?.min(MAX_REQUESTED_DELAY);
        let (used, limit) = (whole_number(used)?, whole_number(limit).filter(|limit| *limit > 0)?);
        let quota = self.quota(name, limit.saturating_sub(used), window.div_f64(limit as f64));
        Some(Remaining { is_estimate: true, limit: Some(limit), window: Some(window), ..quota })
    }

    /// Returns a quota with this name.
    fn quota(&self, name: &str, left: u64, reset_after: Duration) -> Remaining {
        let policy = policy(&self.name, [name.as_bytes()]);
        Remaining::new(policy, QuotaName::of(name, &self.name), self.unit, left, reset_after)
    }

    /// Reads lists of parameters, separated by commas: `b=per_hour;q=100;r=90;t=3600`, or `api-usage=18/1000`, in which
    /// each parameter is a quota.
    fn lists(&self, hits: &[Hit<'_>]) -> Option<Vec<Remaining>> {
        let mut quotas = Vec::new();
        for list in texts(hits, Field::Lists).flat_map(|text| text.split(',')) {
            let (mut name, mut limit, mut left, mut reset_after) = ("", None, None, None);
            for parameter in list.split(';') {
                let (key, value) = parameter.split_once('=')?;
                match key.trim() {
                    "b" => name = value,
                    "q" => limit = Some(whole_number(value)?),
                    "r" => left = Some(whole_number(value)?),
                    "t" => reset_after = Some(Duration::from_secs(whole_number(value)?)),
                    // The burst of Salesforce has no documented window.
                    // The window slides, and does not refill evenly.
                    "api-usage" => {
                        let bucket = self.bucket(key, value)?;
                        quotas.push(Remaining { reset_after: self.window?, ..bucket });
                    }
                    _ => {}
                }
            }
            if let (Some(left), Some(reset_after)) = (left, reset_after) {
                quotas.push(Remaining { limit, ..self.quota(name, left, reset_after) });
            }
        }
        Some(quotas)
    }
}

fn has(hits: &[Hit<'_>], field: Field) -> bool {
    hits.iter().any(|hit| hit.field == field)
}

fn lines<'a>(hits: &[Hit<'a>], field: Field) -> impl Iterator<Item = &'a HeaderValue> {
    hits.iter().filter(move |hit| hit.field == field).map(|hit| hit.value)
}

/// Returns the values of the headers with this field, or an empty text for a value that is not text.
fn texts<'a>(hits: &[Hit<'a>], field: Field) -> impl Iterator<Item = &'a str> {
    lines(hits, field).map(|value| value.to_str().unwrap_or_default().trim_matches([' ', '\t']))
}

/// Parses a number of permits. Rounds used permits up, and others down. Reddit sends fractions, as in
/// `X-Ratelimit-Remaining: 599.0`, and Azure negative numbers.
fn count(text: &str, is_used: bool) -> Option<u64> {
    let text = text.trim_matches([' ', '\t']);
    match text.strip_prefix('-') {
        Some(rest) => number(rest).map(|_| 0),
        None => {
            number(text).map(|(whole, fraction)| whole.saturating_add(u64::from(is_used && fraction > 0)))
        }
    }
}

/// Returns the window of each policy, by its limit, as in `100;w=60`.
fn windows<'a>(lines: impl Iterator<Item = &'a HeaderValue>) -> HashMap<u64, Duration> {
    let mut windows = HashMap::new();
    let read = members(lines, |text| {
        let limit = natural(text.value()?);
        let [window] = structured_quotas::parameters(text, ["w"])?;
        let window = window.and_then(natural).filter(|seconds| *seconds > 0);
        windows.extend(limit.zip(window.map(Duration::from_secs)));
        Some(())
    });
    read.map(|()| windows).unwrap_or_default()
}

/// Adds the remaining requests that a signal states.
pub fn add_signal(list: &mut Vec<Remaining>, left: u64, reset_after: Duration, is_of_resource: bool) {
    list.truncate(remaining::MAX_POLICIES - 1);
    // No header contains a newline, so no quota of a header has this identity.
    let policy = policy("\n", []);
    let reset_after = reset_after.min(MAX_REQUESTED_DELAY);
    let quota = Remaining::new(policy, QuotaName::of_header("signal"), Unit::Requests, left, reset_after);
    add(list, Remaining { is_of_resource, ..quota });
}

/// Returns the 64-bit FNV-1a hash (<http://www.isthe.com/chongo/tech/comp/fnv/>), which is the same in every build and
/// process.
fn policy<'a>(name: &str, parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    // A zero byte precedes each part. No name contains a zero byte, so different policies never have the same bytes.
    let parts = parts.into_iter().flat_map(|part| [b"\0", part]);
    let parts = once(name.as_bytes()).chain(parts);
    parts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
