//! The settings of a core, requests for permits, and their outcomes.

use std::num::NonZeroU32;

use super::{latest::Latest, quotas::Rule, server::pause::PauseSettings, slots::Ticket};
use crate::{
    error::Refusal,
    policy::{Amounts, Priority},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreSettings {
    pub rule: Rule,
    /// Whether the remaining permits that the server reports limit the grants even if the limiter has a quota.
    pub obeys_remaining: bool,
    /// The share of each lower priority, in percent of all permits. `None` for the default.
    pub lower_share: Option<u32>,
    /// The maximum number of permits that are available at the start. `None` for the burst, or for the whole limit.
    pub initial_burst: Option<u32>,
    pub pauses: PauseSettings,
    pub max_in_flight: Option<NonZeroU32>,
    /// How long a cancelled request still counts as in flight, in nanoseconds.
    pub hold_after_cancel: u64,
}

impl CoreSettings {
    /// The default settings of a limiter without a quota, which learns.
    pub const DEFAULT: Self = Self::new(Rule::Learned);

    /// The default settings of a limiter with this rule.
    pub const fn new(rule: Rule) -> Self {
        let pauses = PauseSettings::DEFAULT;
        Self {
            rule,
            obeys_remaining: false,
            lower_share: None,
            initial_burst: None,
            pauses,
            max_in_flight: None,
            hold_after_cancel: 0,
        }
    }
}

/// A request for permits.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub cost: NonZeroU32,
    pub priority: Priority,
    pub latest: Latest,
    /// The maximum number of other waiters of the same or a higher priority.
    pub max_queue: usize,
    /// Whether earlier permits of the request have expired before it was sent.
    pub is_renewed: bool,
    /// Whether the request is already in flight. Only a renewed one can be.
    pub is_in_flight: bool,
    /// What the request takes of the quotas of other units.
    pub amounts: &'a Amounts,
}

/// Permits that were granted, and the time at which their caller learned of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    pub at: u64,
    pub cost: NonZeroU32,
    /// When the amounts were taken.
    pub taken_at: u64,
}

impl Grant {
    /// Creates the grant of a request that did not wait.
    pub const fn new(at: u64, cost: NonZeroU32) -> Self {
        Self { at, cost, taken_at: at }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    Granted(Grant),
    Queued(Ticket),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Waiting,
    Granted(Grant),
    Refused(Refusal),
}
