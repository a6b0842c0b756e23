//! The remaining permits of one quota, and the order of several quotas.

use std::{cmp::Reverse, fmt, time::Duration};

use super::quota_name::QuotaName;
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
