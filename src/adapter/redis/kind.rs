//! Which arithmetic decides.

use crate::policy::Quota;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    SlidingWindow,
}

impl Kind {
    /// The most permits of a quota that can ever be had at once, and which of its numbers that is.
    pub(super) fn most(self, quota: &Quota) -> (u32, &'static str) {
        match self {
            Self::TokenBucket => (quota.burst(), "burst"),
            Self::SlidingWindow => (quota.limit(), "limit"),
        }
    }

    /// The most that one request can ever cost under all of them.
    pub(super) fn largest(self, quotas: &[Quota]) -> u32 {
        quotas.iter().map(|quota| self.most(quota).0).min().unwrap_or(u32::MAX)
    }
}
