//! The remaining permits of one quota, and the order of several quotas.

use std::{cmp::Reverse, fmt, time::Duration};

use crate::policy::header_values::MAX_REQUESTED_DELAY;

/// The maximum number of quotas that are kept from one response. If a response reports more, the quotas with the fewest
/// remaining permits are kept.
///
/// Most services report one or two quotas. Brave, for example, has one quota per second and one per month.
pub const MAX_POLICIES: usize = 8;

/// What a quota counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Unit {
    /// Requests.
    #[default]
    Requests,
    /// Tokens of a language model, those of the prompt and of the response together.
    Tokens,
    /// Tokens of the prompt.
    InputTokens,
    /// Tokens of the response.
    OutputTokens,
    /// Points or complexity: the cost of a request, which depends on its content.
    Points,
    /// Bytes of content.
    Bytes,
    /// Requests that are in progress at the same time.
    Concurrency,
}

impl Unit {
    /// The units with their names.
    pub(crate) const NAMES: [(Self, &'static str); 7] = [
        (Self::Requests, "requests"),
        (Self::Tokens, "tokens"),
        (Self::InputTokens, "input_tokens"),
        (Self::OutputTokens, "output_tokens"),
        (Self::Points, "points"),
        (Self::Bytes, "bytes"),
        (Self::Concurrency, "concurrency"),
    ];

    /// Returns the name in lowercase, such as `input_tokens`. Logs, metrics and configuration files use it.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(unit, _)| *unit == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The remaining permits of one quota of the server, and the time until more become available.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
/// use tower_outbound::limit::ResponseInfo;
///
/// let field = (HeaderName::from_static("ratelimit"), HeaderValue::from_static(r#""burst";r=50;t=30"#));
/// let headers = HeaderMap::from_iter([field]);
/// for quota in ResponseInfo::new(StatusCode::OK, &headers).remaining() {
///     assert_eq!((quota.left(), quota.reset_after()), (50, Duration::from_secs(30)));
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    pub(super) policy: u64,
    pub(super) name: QuotaName,
    pub(super) unit: Unit,
    /// Whether the headers name the resource or bucket of the quota.
    pub(super) is_of_resource: bool,
    /// Whether the server reports the quota, but does not enforce it yet.
    pub(super) is_beta: bool,
    /// Whether no header states the reset, so that it follows from the window.
    pub(super) is_estimate: bool,
    pub(super) left: u64,
    pub(super) reset_after: Duration,
    pub(super) limit: Option<u64>,
    pub(super) window: Option<Duration>,
}

impl Remaining {
    /// Creates a quota of the account whose limit and window are unknown.
    pub(super) fn new(policy: u64, name: QuotaName, unit: Unit, left: u64, reset_after: Duration) -> Self {
        let [is_of_resource, is_beta, is_estimate] = [false; 3];
        let (limit, window) = (None, None);
        Self { policy, name, unit, is_of_resource, is_beta, is_estimate, left, reset_after, limit, window }
    }

    /// Returns a number that identifies the quota. The number is the same in all responses of a server that report the
    /// same name, resource and partition key. The numbers of different servers are not comparable.
    pub const fn policy(&self) -> u64 {
        self.policy
    }

    /// Returns the name of the quota. It may be a text of the server.
    pub const fn name(&self) -> QuotaName {
        self.name
    }

    pub(crate) fn named(self, name: QuotaName) -> Self {
        Self { name, ..self }
    }

    pub(crate) fn resetting_after(self, reset_after: Duration) -> Self {
        Self { reset_after, ..self }
    }

    /// Returns what the quota counts. Only quotas of requests determine the rate of requests.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns whether the headers name the resource or bucket to which the quota belongs. The quota then does not
    /// apply to the other requests of the account.
    pub const fn is_of_resource(&self) -> bool {
        self.is_of_resource
    }

    pub(crate) const fn is_beta(&self) -> bool {
        self.is_beta
    }

    pub(crate) const fn is_estimate(&self) -> bool {
        self.is_estimate
    }

    /// Returns how many permits remain. A request may cost several permits, or none.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Returns the time from the receipt of the response, or from the [`Snapshot`](crate::limit::Snapshot), until more
    /// permits become available, at most 30 years. Returns zero if more permits should already be available. The rest
    /// of the quota may become available later.
    pub const fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// Returns how many permits the quota grants in each window, if the headers report it.
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the window of the quota, if the headers report it or if the service documents it.
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }
}

impl fmt::Debug for Remaining {
    // Omits `policy`, because it is a hash of a text of the server, which may contain the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remaining")
            .field("name", &self.name)
            .field("unit", &self.unit)
            .field("left", &self.left)
            .field("reset_after", &self.reset_after)
            .field("limit", &self.limit)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

/// Inserts a quota into a list. A reset after more than a window counts as a window. The list is ordered like the
/// result of [`remaining()`]. Keeps at most [`MAX_POLICIES`] quotas, so each insertion takes constant time.
///
/// [`remaining()`]: super::remaining()
pub(super) fn add(list: &mut Vec<Remaining>, new: Remaining) {
    let longest = new.window.unwrap_or(MAX_REQUESTED_DELAY).min(MAX_REQUESTED_DELAY);
    let new = Remaining { reset_after: new.reset_after.min(longest), ..new };
    let rank = |item: &Remaining| (item.left, Reverse(item.reset_after));
    let place = list.partition_point(|kept| rank(kept) <= rank(&new));
    list.insert(place, new);
    list.truncate(MAX_POLICIES);
}

/// The name of a quota of a server: the resource, bucket or policy that its headers name, or else the header with the
/// remaining permits. A name has at most 47 bytes.
///
/// Only [`as_str`](Self::as_str) shows the text of a server, which may repeat the key. `Debug` redacts it, and there is
/// no `Display`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QuotaName {
    /// Whether the name is that of a header, and not a text of the server.
    is_header: bool,
    length: u8,
    text: [u8; Self::LONGEST],
}

impl QuotaName {
    const LONGEST: usize = 47;
    /// The name that stands for one that may contain a key.
    const REDACTED: &str = "redacted";

    /// Uses the text of a server. Uses `header` instead if the text is empty, longer than a name, not visible ASCII, or
    /// contains an escaped character. A key that the server repeats would otherwise not be recognised.
    pub(super) fn of(text: &str, header: &str) -> Self {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        if (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(is_plain) {
            Self { is_header: false, ..Self::of_header(text) }
        } else {
            Self::of_header(header)
        }
    }

    /// Uses the beginning of the name of a header.
    pub(crate) fn of_header(text: &str) -> Self {
        let mut name = Self { is_header: true, length: 0, text: [0; Self::LONGEST] };
        for (place, byte) in name.text.iter_mut().zip(text.bytes().filter(u8::is_ascii)) {
            *place = byte;
            name.length += 1;
        }
        name
    }

    /// Returns this name, or a word that stands for it if it is a text of the server that `is_secret`.
    pub(crate) fn unless(self, is_secret: impl FnOnce(&str) -> bool) -> Self {
        let is_shown = self.is_header || !is_secret(self.as_str());
        if is_shown { self } else { Self::of_header(Self::REDACTED) }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        self.text
            .get(..self.length.into())
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default()
    }
}

impl fmt::Debug for QuotaName {
    // Does not write a text of the server, which may repeat the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_header { self.as_str().fmt(f) } else { f.write_str("QuotaName(..)") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_name_is_the_whole_text_of_the_server_or_the_header() {
        let long = "x".repeat(47);
        for (text, name) in [
            ("core", "core"),
            ("", "header"),
            ("a b", "header"),
            ("é", "header"),
            (r"a\b", "header"),
            (&long, &long),
        ] {
            assert_eq!(QuotaName::of(text, "header").as_str(), name);
        }
        assert_eq!(QuotaName::of(&"x".repeat(48), "header").as_str(), "header");
        assert_eq!(QuotaName::of_header(&"x".repeat(99)).as_str(), long);
    }

    #[test]
    fn text_of_the_server_is_not_in_debug_output_and_is_redacted_if_it_is_a_secret() {
        let [text, header] = ["core", ""].map(|text| QuotaName::of(text, "header"));
        assert_eq!(format!("{text:?} {header:?}"), "QuotaName(..) \"header\"");
        for (name, is_secret, shown) in
            [(text, false, "core"), (text, true, "redacted"), (header, true, "header")]
        {
            assert_eq!(name.unless(|_| is_secret).as_str(), shown);
        }
    }
}
