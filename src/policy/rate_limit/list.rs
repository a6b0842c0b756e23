//! The list of what is left, in order and bounded.

use std::{array, cmp::Reverse, fmt, iter, slice, time::Duration};

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
    const NONE: Self = Self { policy: 0, left: 0, more_in: Duration::ZERO };

    pub(super) fn new(policy: u64, left: u64, more_in: Duration) -> Self {
        Self { policy, left, more_in: more_in.min(MAX_ASK) }
    }

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

/// What [`remaining()`] found: at most [`MAX_POLICIES`], the one with the least left first; of equals the one
/// that has the longest to go.
///
/// [`remaining()`]: super::remaining()
#[derive(Clone, PartialEq, Eq)]
pub struct RemainingList {
    items: [Remaining; MAX_POLICIES],
    len: usize,
}

impl RemainingList {
    pub(super) const EMPTY: Self = Self { items: [Remaining::NONE; MAX_POLICIES], len: 0 };

    /// Those that were found, in order.
    pub fn as_slice(&self) -> &[Remaining] {
        self.items.get(..self.len).unwrap_or_default()
    }

    /// Keeps the order and the cap, so any number may be added in linear time.
    pub(super) fn add(&mut self, new: Remaining) {
        let rank = |item: &Remaining| (item.left, Reverse(item.more_in));
        let place = self.as_slice().partition_point(|kept| rank(kept) <= rank(&new));
        if place == MAX_POLICIES {
            return;
        }
        self.len = (self.len + 1).min(MAX_POLICIES);
        self.items[place..self.len].rotate_right(1);
        self.items[place] = new;
    }
}

impl Default for RemainingList {
    /// Nothing.
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for RemainingList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl IntoIterator for RemainingList {
    type Item = Remaining;
    type IntoIter = iter::Take<array::IntoIter<Remaining, MAX_POLICIES>>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter().take(self.len)
    }
}

impl<'a> IntoIterator for &'a RemainingList {
    type Item = &'a Remaining;
    type IntoIter = slice::Iter<'a, Remaining>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}
