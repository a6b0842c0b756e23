//! The remaining permits of a quota, and the order in which they are listed.

use std::{cmp::Reverse, time::Duration};

use crate::policy::fields::MAX_ASK;

/// The most policies that are read of an answer: of more, those with the least left.
///
/// Services have one or two, such as Brave's for a second and for a month; this leaves room.
pub const MAX_POLICIES: usize = 8;

/// What is left of one of the server's quotas, and when more comes.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
/// use tower_outbound::limit::ResponseInfo;
///
/// let field = (HeaderName::from_static("ratelimit"), HeaderValue::from_static(r#""burst";r=50;t=30"#));
/// let headers = HeaderMap::from_iter([field]);
/// for quota in ResponseInfo::new(StatusCode::OK, &headers).remaining() {
///     assert_eq!((quota.left(), quota.more_in()), (50, Duration::from_secs(30)));
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    policy: u64,
    left: u64,
    more_in: Duration,
}

impl Remaining {
    /// Which of the server's quotas this is: the same number in every answer that names the same policy and
    /// partition key. Means nothing between two servers.
    pub const fn policy(&self) -> u64 {
        self.policy
    }

    /// How many units are left. A request may cost several, or none.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// How long until there are more, if not all, counted from the receipt of the response, and at most 30 years. Zero
    /// when that moment has passed.
    pub const fn more_in(&self) -> Duration {
        self.more_in
    }
}

/// Adds a policy to a list in the order of [`remaining()`], within [`MAX_POLICIES`]. Adding any number takes linear time.
///
/// [`remaining()`]: super::remaining()
pub(super) fn add(list: &mut Vec<Remaining>, policy: u64, left: u64, more_in: Duration) {
    let new = Remaining { policy, left, more_in: more_in.min(MAX_ASK) };
    let rank = |item: &Remaining| (item.left, Reverse(item.more_in));
    let place = list.partition_point(|kept| rank(kept) <= rank(&new));
    list.insert(place, new);
    list.truncate(MAX_POLICIES);
}
