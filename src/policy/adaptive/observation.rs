//! The inputs of a learner: the progress of all requests, and single responses.

use crate::policy::rate_limit::Remaining;

/// A second in nanoseconds, the unit of all times.
pub(super) const SECOND: u64 = 1_000_000_000;

/// The counts that the queue keeps for the learner: of permits, or of the amounts of a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// The number of permits whose requests the server accepted so far.
    pub(crate) accepted: u64,
    /// The number of granted permits whose requests are neither completed nor dropped.
    pub(crate) in_flight: u64,
    /// How much a usual request takes: one permit, or the mean amount.
    pub(crate) each: u64,
}

/// Whether a server's rate limit accepted a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// It accepted the request.
    Accepted,
    /// It rejected the request.
    Throttled,
    /// A 503 that reports no quota without remaining permits: a throttle, or an outage.
    Unavailable,
}

/// A response of the server.
#[derive(Debug)]
pub(crate) struct Observation<'a> {
    pub(crate) acceptance: Acceptance,
    pub(crate) granted_at: u64,
    pub(crate) sent_at: u64,
    /// The delay that the server requested, in nanoseconds.
    pub(crate) requested_pause: Option<u64>,
    pub(crate) remaining: &'a [Remaining],
}
