//! The member of a pool that serves a call.

use super::CallContext;
use crate::clock::Instant;

/// The member of a pool to which the request of a call goes.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Identifies the pool.
    pub(crate) pool: usize,
    pub(crate) index: usize,
    /// Whether the next request must go to this member: it has its permit from the member's limiter, or the member may have
    /// processed an earlier one.
    pub(crate) is_fixed: bool,
    /// Whether another member can serve the next attempt before the deadline.
    pub(crate) has_alternative: bool,
    /// The members that have requested a delay, and the earliest time at which the next attempt may go to each.
    pub(crate) delays: Vec<(usize, Instant)>,
}

impl CallContext {
    /// Returns the member of the last attempt, if it belongs to this pool.
    pub(crate) fn member(&self, pool: usize) -> Option<Member> {
        self.0.shared.state().member.as_ref().filter(|member| member.pool == pool).cloned()
    }

    pub(crate) fn set_member(&self, member: Member) {
        self.0.shared.state().member = Some(member);
    }

    /// Records whether the next attempt may go to another member. Returns whether it may, and another member can serve it.
    pub(crate) fn release_member(&self, may_move: bool) -> bool {
        let mut state = self.0.shared.state();
        let Some(member) = &mut state.member else { return false };
        member.is_fixed = !may_move;
        may_move && member.has_alternative
    }

    /// Delays the next attempt at the last member, instead of the next attempt at any member.
    pub(crate) fn delay_member(&self, until: Instant) {
        if let Some(member) = &mut self.0.shared.state().member {
            member.delays.push((member.index, until));
        }
    }
}
