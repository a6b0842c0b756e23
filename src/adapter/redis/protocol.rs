//! The query to the store's script, and its reply.

use std::{pin::Pin, time::Duration};

use crate::policy::Amounts;

/// The maximum number of permits that one query requests. This maximum limits how long the script runs.
pub(super) const MAX_PERMITS: u32 = 1_000;

/// The store, which grants permits to all processes.
pub(super) trait Decide: Send + Sync {
    fn decide(&self, query: Query) -> Decided<'_>;
}

/// The future of a query. Its error is the reason why the store did not reply, and contains no secret.
pub(super) type Decided<'a> = Pin<Box<dyn Future<Output = Result<Reply, String>> + Send + 'a>>;

/// A query to the store. Times are nanoseconds since the limiter was created.
#[derive(Debug, Clone, Default)]
pub(super) struct Query {
    /// The number of blocks that the query requests. The permits of a block become available together.
    pub(super) want: u32,
    /// The number of permits in each block.
    pub(super) unit: u32,
    /// The amounts of a block. Only a query for one block has amounts.
    pub(super) amounts: Amounts,
    pub(super) now: u64,
    /// The identity of the store's memory, as stated in the store's last reply, and the time of that reply.
    pub(super) known: Option<(Known, u64)>,
    /// The number of permits that the process granted from its share. `None` if it used no share.
    pub(super) share_used: Option<u64>,
    pub(super) flight: FlightReport,
    pub(super) updates: Updates,
}

/// Amounts that a request did not take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Returned {
    /// The time of the store, in µs. The store has counted the amounts since this time or a later one.
    pub(super) since: i64,
    pub(super) amounts: Amounts,
}

/// The requests in flight of a process. Without a limit of requests in flight, the store does not read them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FlightReport {
    /// Identifies the limiter. A process may have several.
    pub(super) id: u64,
    pub(super) requests: u32,
    /// The number of fetched permits that further requests will use. Negative if requests that are already in flight
    /// wait for permits.
    pub(super) spare: i64,
    /// The time of the store, in µs, until which it counts requests of this process, unless it has lost its memory. It
    /// may count them for longer. Zero if it counts none.
    pub(super) counted_until: i64,
}

/// The updates that a process reports to the store.
#[derive(Debug, Clone, Default)]
pub(super) struct Updates {
    pub(super) pause_until: u64,
    /// When the process lifted the pause: the time of the store, in µs. The store then discards the remaining permits
    /// that the service reported, and its pause unless it is newer.
    pub(super) resumed_at: Option<i64>,
    /// How many times the process has lifted a pause.
    pub(super) resumes: u32,
    /// The remaining permits that the service reported.
    pub(super) gates: Vec<Gate>,
    /// The amounts that requests took and the store does not count yet. They are sent until a reply arrives, so they
    /// may count twice.
    pub(super) more: Amounts,
    /// The amounts that the store counts and requests did not take. They are sent once, because no amount may be
    /// returned twice.
    pub(super) less: Vec<Returned>,
}

/// Two values that identify the store's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) born: i64,
    pub(super) granted: i64,
}

/// The remaining permits of one of the service's rate-limit policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) policy: u64,
    pub(super) left: u64,
    pub(super) until: u64,
}

/// The store's reply. Durations count from the time of the store's decision.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) known: Known,
    pub(super) paused: Duration,
    /// The time until the next block becomes available. The store has not granted this block yet.
    pub(super) free: Duration,
    /// Whether the quotas of requests delay the next block. Otherwise, they may have more permits than the store has
    /// granted.
    pub(super) is_spent: bool,
    /// The time until the store can grant the next block: [`free`](Self::free) minus the horizon, but at least zero.
    pub(super) query_in: Duration,
    /// The grants. Each consists of the delay before its permits may be used, and their number.
    pub(super) grants: Vec<(Duration, u32)>,
    /// How many further requests may be in flight.
    pub(super) admitted: u32,
    /// Whether the limit of requests in flight delays further requests of the query.
    pub(super) is_full: bool,
    /// The store's time of the decision, in µs.
    pub(super) at: i64,
    /// For each quota that counts a unit other than requests: the available amount, and how long it delays the block.
    pub(super) units: Vec<(u64, Duration)>,
}

impl Amounts {
    /// Returns the sums of both amounts of each unit.
    pub(super) fn plus(self, other: &Self) -> Self {
        self.zip(other, u32::saturating_add)
    }

    /// Returns by how much each amount exceeds the other one.
    pub(super) fn minus(self, other: &Self) -> Self {
        self.zip(other, u32::saturating_sub)
    }
}

/// Returns the duration in microseconds, rounded up.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
