//! The query to the store's script and its reply.

use std::{future::Future, pin::Pin, time::Duration};

use crate::policy::Quota;

/// The most permits of one query, because they determine how long the script runs.
pub(super) const MOST: u32 = 1_000;

/// Decides for all processes.
pub(super) trait Decide: Send + Sync {
    fn decide(&self, query: Query) -> Decided<'_>;
}

/// The error is the reason why the store did not reply. It contains no secret.
pub(super) type Decided<'a> = Pin<Box<dyn Future<Output = Result<Reply, String>> + Send + 'a>>;

/// The algorithm that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    SlidingWindow,
}

impl Kind {
    /// The most permits of a quota that are ever available at once, and the name of that number.
    pub(super) fn most(self, quota: &Quota) -> (u32, &'static str) {
        match self {
            Self::TokenBucket => (quota.burst(), "burst"),
            Self::SlidingWindow => (quota.limit(), "limit"),
        }
    }
}

/// Times are nanoseconds since the queue's origin.
#[derive(Debug, Clone, Default)]
pub(super) struct Query {
    /// The number of blocks of permits.
    pub(super) want: u32,
    /// The permits of a block, which become available together.
    pub(super) unit: u32,
    pub(super) now: u64,
    /// The memory of the store as of its last reply, and the time of that reply.
    pub(super) known: Option<(Known, u64)>,
    /// The number of permits that the process used from its share.
    pub(super) back: Option<u64>,
    pub(super) news: News,
}

/// The news that a process reports to the store.
#[derive(Debug, Clone, Default)]
pub(super) struct News {
    pub(super) pause_until: u64,
    /// Discards the server limits.
    pub(super) resume: bool,
    /// The remaining permits that the service reported.
    pub(super) gates: Vec<Gate>,
}

/// Identifies the store's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) born: i64,
    pub(super) granted: i64,
}

/// The remaining permits of one of the service's policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) policy: u64,
    pub(super) left: u64,
    pub(super) until: u64,
}

/// Durations count from the decision.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) known: Known,
    pub(super) paused: Duration,
    /// When the next permit that was not granted becomes available.
    pub(super) free: Duration,
    /// When it can be queried, ahead of that time.
    pub(super) query_in: Duration,
    /// When permits may be used, and how many.
    pub(super) grants: Vec<(Duration, u32)>,
}

/// Rounded up.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
