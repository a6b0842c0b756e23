//! The member of a pool to which a call goes.

use std::{num::NonZeroU32, time::Duration};

use http::Uri;

use super::CallContext;
use crate::{
    clock::{self, Instant},
    policy::{Amounts, Priority},
};

/// The member of a pool to which the request of a call goes.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Identifies the pool.
    pub(crate) pool: usize,
    pub(crate) index: usize,
    pub(crate) needs: Needs,
    /// Whether the next request must go to this member: it has its permit from the member's limiter, or `is_bound`.
    pub(crate) is_fixed: bool,
    /// Whether a member may have processed an attempt of the call.
    pub(crate) is_bound: bool,
    /// When another member is expected to grant the permits of the next attempt, before the deadline.
    pub(crate) alternative: Option<Duration>,
    /// The times before which the next attempt must not go to a member.
    pub(crate) delays: Vec<(usize, Instant)>,
    /// The member and the URI of the last attempt that was passed to a member, for the event of the call.
    pub(crate) routed: Option<(usize, Uri)>,
}

/// The member to which a request goes, in the extensions of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) index: usize,
}

/// Returns how long the next attempt must not go to the member, of the delays of all members.
pub(crate) fn delay_of(delays: &[(usize, Instant)], index: usize) -> Duration {
    let until = delays.iter().filter(|(member, _)| *member == index).map(|(_, until)| *until).max();
    until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::now()))
}

/// What the request needs from the limiter of a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) cost: NonZeroU32,
    pub(crate) amounts: Amounts,
    pub(crate) priority: Priority,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_queue: usize,
}

impl CallContext {
    /// Returns the member of the last attempt, if it belongs to this pool.
    pub(crate) fn member(&self, pool: usize) -> Option<Member> {
        let state = self.0.shared.state();
        state.rare.as_deref()?.member.as_deref().filter(|member| member.pool == pool).cloned()
    }

    pub(crate) fn set_member(&self, member: Member) {
        match &mut self.0.shared.state().rare.get_or_insert_default().member {
            Some(last) => **last = member,
            none => *none = Some(Box::new(member)),
        }
    }

    /// Records that the running attempt goes to the member at `index`, with this URI.
    pub(crate) fn route_attempt(&self, index: usize, uri: &Uri) {
        let mut state = self.0.shared.state();
        if let Some(attempt) = &mut state.attempts.last {
            attempt.member = index.into();
        }
        if let Some(member) = state.rare.as_deref_mut().and_then(|rare| rare.member.as_mut()) {
            member.routed = Some((index, uri.clone()));
        }
    }

    /// Returns the member of the pool that got the last attempt, if there is a pool.
    pub(crate) fn served_by(&self) -> Option<usize> {
        Some(self.0.shared.state().rare.as_deref()?.member.as_ref()?.routed.as_ref()?.0)
    }

    /// Records whether the next attempt may go to another member. It may if `is_free`, or if no member may have
    /// processed an attempt. Returns when another member is expected to grant its permits.
    pub(crate) fn release_member(&self, is_free: bool, may_be_processed: bool) -> Option<Duration> {
        let mut state = self.0.shared.state();
        let member = state.rare.as_deref_mut()?.member.as_mut()?;
        member.is_bound |= may_be_processed;
        member.is_fixed = member.is_bound && !is_free;
        member.alternative.filter(|_| !member.is_fixed)
    }

    /// Delays the next attempt at the last member, instead of the next attempt at any member.
    pub(crate) fn delay_member(&self, until: Instant) {
        let mut state = self.0.shared.state();
        if let Some(member) = state.rare.as_deref_mut().and_then(|rare| rare.member.as_mut()) {
            member.delays.push((member.index, until));
        }
    }
}
