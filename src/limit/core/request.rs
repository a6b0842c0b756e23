//! The settings of a core, requests for permits, and their outcomes.

use std::num::NonZeroU32;

use super::{latest::Latest, quotas::Spread, slots::Ticket};
use crate::{error::Refusal, policy::Priority};

/// How a limiter grants permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The permits of the configured quotas.
    Quotas(Spread),
    /// A rate learned from the server, below the configured quotas.
    Learned,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreSettings {
    pub(crate) rule: Rule,
    /// Whether the remaining permits that the server reports limit the grants even if the limiter has a quota.
    pub(crate) obeys_remaining: bool,
    /// The share of each lower priority, in percent of all permits. `None` for the default.
    pub(crate) lower_share: Option<u32>,
}

/// A request for permits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) cost: NonZeroU32,
    pub(crate) priority: Priority,
    pub(crate) latest: Latest,
    /// The maximum number of other waiters of the same or a higher priority.
    pub(crate) max_queue: usize,
}

/// Permits that were granted, and the time at which their caller learned of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    pub(crate) cost: NonZeroU32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Submitted {
    Granted(Grant),
    Queued(Ticket),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    Waiting,
    Granted(Grant),
    Refused(Refusal),
}
