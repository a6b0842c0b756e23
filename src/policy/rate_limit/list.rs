//! The remaining permits of a quota, and the order in which they are listed.

use std::{cmp::Reverse, time::Duration};

use crate::policy::header_values::MAX_REQUESTED_DELAY;

/// The most policies that are read from a response. Of more policies, those with the fewest remaining permits are kept.
///
/// Services have one or two, such as Brave's quotas for a second and for a month.
pub const MAX_POLICIES: usize = 8;

/// The remaining permits of one of the server's quotas, and when more become available.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    policy: u64,
    left: u64,
    reset_after: Duration,
}

impl Remaining {
    /// Identifies the quota: every response of the server with the same policy and partition key gives the same number.
    /// Numbers of different servers are not comparable.
    pub const fn policy(&self) -> u64 {
        self.policy
    }

    /// Returns how many permits remain. A request may cost several, or none.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Returns the time until more permits become available, counted from the receipt of the response, at most 30 years.
    /// It is zero if that time has passed. Some permits may become available later.
    pub const fn reset_after(&self) -> Duration {
        self.reset_after
    }
}

/// Adds a policy to a list in the order of [`remaining()`], within [`MAX_POLICIES`]. Adding any number takes linear time.
///
/// [`remaining()`]: super::remaining()
pub(super) fn add(list: &mut Vec<Remaining>, policy: u64, left: u64, reset_after: Duration) {
    let new = Remaining { policy, left, reset_after: reset_after.min(MAX_REQUESTED_DELAY) };
    let rank = |item: &Remaining| (item.left, Reverse(item.reset_after));
    let place = list.partition_point(|kept| rank(kept) <= rank(&new));
    list.insert(place, new);
    list.truncate(MAX_POLICIES);
}
